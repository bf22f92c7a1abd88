package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	saslplain "github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/perceptor/perceptor/internal/testenv"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// TestAListenerWorksThoughTheFirstBrokerHangs gives a listener a first broker that accepts
// connections and answers nothing.
func TestAListenerWorksThoughTheFirstBrokerHangs(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hung.Close() })
	b.svc.brokers = append([]string{hung.Addr().String()}, b.svc.brokers...)
	var c counter
	b.listen(ListenerConfig{}, map[string]Handler{"count": c.handle})
	b.publish(manyRuns(3, "count")...)
	b.awaitHandled(&c, 3)
}

// silentBroker returns the address of a broker that hangs.
func silentBroker(t *testing.T) string {
	t.Helper()
	hung, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hung.Close() })
	return hung.Addr().String()
}

// TestBrokersThatHangDelayNoReaderForLong renews the leaders, as after a failure of one partition.
func TestBrokersThatHangDelayNoReaderForLong(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.publish(manyRuns(1, "count")...)
	l, err := b.client.NewListener(ListenerConfig{kafka: fast})
	if err != nil {
		t.Fatal(err)
	}
	brokers := append([]string{silentBroker(t), silentBroker(t), silentBroker(t)}, b.svc.brokers...)
	f := newConsumer(l, &perceptorv1.Delivery{Topic: testTopic, Group: testTopic, Brokers: brokers}).newFetcher(t.Context(), nil)
	defer func() { f.transport.CloseIdleConnections() }()
	for range 4 {
		began := time.Now()
		if _, err := f.fetch([]*feed{{tracker: newTracker(0, 0)}}); err != nil || time.Since(began) > 3*time.Second {
			t.Fatalf("a fetch took %v: %v", time.Since(began), err)
		}
		f.renewed = time.Time{}
		f.renew()
	}
}

// TestTheBrokerThatAnswersIsVerified: by its own name, and not by that of the first one of the list.
func TestTheBrokerThatAnswersIsVerified(t *testing.T) {
	t.Parallel()
	ca := testenv.NewCA(t)
	b := setup(t, 1)
	for host, trusted := range map[string]bool{"localhost": true, "elsewhere.invalid": false} {
		files := ca.Issue(t, testenv.Server, testenv.Host(host))
		cert, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, testTopic), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cluster.Close)
		l, err := b.client.NewListener(ListenerConfig{kafka: fast})
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(cluster.ListenAddrs()[0])
		c := newConsumer(l, &perceptorv1.Delivery{Topic: testTopic, Group: testTopic, Brokers: []string{silentBroker(t), "localhost:" + port}})
		c.tls = ca.Trust()
		f := c.newFetcher(t.Context(), nil)
		defer f.transport.CloseIdleConnections()
		_, err = f.client().Metadata(t.Context(), &kafka.MetadataRequest{Topics: []string{testTopic}})
		var refused x509.HostnameError
		if trusted && err != nil || !trusted && !errors.As(err, &refused) {
			t.Errorf("a broker with a certificate of %s: %v", host, err)
		}
	}
}

// TestALoginIsGivenUpWhenTheBrokerHangs connects as a member of a group does.
func TestALoginIsGivenUpWhenTheBrokerHangs(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	l, err := b.client.NewListener(ListenerConfig{kafka: fast})
	if err != nil {
		t.Fatal(err)
	}
	c := newConsumer(l, &perceptorv1.Delivery{Topic: testTopic, Group: testTopic, Brokers: b.svc.brokers})
	c.dialer.SASLMechanism, c.dialer.Timeout = saslplain.Mechanism{Username: "user", Password: "password"}, 100*time.Millisecond
	ended := make(chan error, 1)
	hung := silentBroker(t)
	go func() {
		conn, err := c.dialer.Dial("tcp", hung)
		if err == nil {
			err = conn.Close()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a broker that hangs accepted a login")
		}
	case <-time.After(patience):
		t.Error("the login is not given up")
	}
}

// TestAReaderGoesOnToTheNextBroker lets the reader begin with the broker that hangs.
func TestAReaderGoesOnToTheNextBroker(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hung.Close() })
	b.publish(manyRuns(1, "count")...)
	l, err := b.client.NewListener(ListenerConfig{kafka: fast})
	if err != nil {
		t.Fatal(err)
	}
	c := newConsumer(l, &perceptorv1.Delivery{Topic: testTopic, Group: testTopic, Brokers: append([]string{hung.Addr().String()}, b.svc.brokers...)})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	f := c.newFetcher(ctx, nil)
	defer f.transport.CloseIdleConnections()
	one := &feed{tracker: newTracker(0, 0)}
	for {
		res, err := f.fetch([]*feed{one})
		if err == nil {
			if parts := partsOf(res, []*feed{one}); len(parts) != 1 || len(readAll(t, &parts[0])) != 1 || parts[0].err != nil {
				t.Errorf("fetched %+v, want one record", parts)
			}
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		f.renew()
	}
}

func TestABrokerThatFailedIsAskedLast(t *testing.T) {
	l := newBrokerList([]string{"a:1", "b:1", "c:1"})
	before := l.get()
	l.rotate()
	if want := []string{"b:1", "c:1", "a:1"}; !slices.Equal(l.get(), want) || before[0] != "a:1" {
		t.Errorf("after a failure = %v (before: %v), want %v, and the former list unchanged", l.get(), before, want)
	}
}
