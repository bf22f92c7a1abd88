// Command secure answers tasks of kind hello over links with TLS, until it has answered one.
//
//	PERCEPTOR_ADDRESS=taskd-1:7070 PERCEPTOR_TOKEN=... go run ./examples/secure -ca ca.pem -kafka-ca kafka-ca.pem
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"

	"github.com/perceptor/perceptor/client"
)

func main() {
	api := flag.String("ca", "", "file of the CA that signs the certificate of taskd")
	kafka := flag.String("kafka-ca", "", "file of the CA that signs the certificates of the brokers")
	flag.Parse()
	if err := run(context.Background(), *api, *kafka); err != nil {
		log.Fatal(err)
	}
}

// run returns when a task was answered.
func run(ctx context.Context, apiCA, kafkaCA string) error {
	api, err := trust(apiCA)
	if err != nil {
		return err
	}
	kafka, err := trust(kafkaCA)
	if err != nil {
		return err
	}
	c, err := client.New(client.Config{TLS: api, Kafka: client.KafkaConfig{TLS: kafka}}) // PERCEPTOR_ADDRESS, PERCEPTOR_TOKEN
	if err != nil {
		return err
	}
	defer c.Close()
	listener, err := c.NewListener(client.ListenerConfig{})
	if err != nil {
		return err
	}
	ctx, answered := context.WithCancel(ctx)
	defer answered()
	listener.Handle("hello", func(_ context.Context, run *client.Run) error {
		fmt.Printf("hello, %s!\n", run.Params["name"])
		answered() // the result is reported before Run returns
		return nil
	})
	return listener.Run(ctx)
}

// trust returns TLS that trusts the certificates in a file.
func trust(file string) (*tls.Config, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, errors.New(file + " has no certificate")
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}
