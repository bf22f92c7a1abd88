package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/internal/subprocess"
)

const kafkaCallWait = 10 * time.Second

// KafkaCluster is a group of Kafka servers, each of which is broker and controller. Topics have as many
// replicas as there are servers, at most three, and accept records while two of three are in sync. Each
// server may be killed, paused and restarted separately.
type KafkaCluster struct {
	Servers []*KafkaServer

	id         string
	configs    [][]byte
	advertised []string
}

// KafkaClusterOptions are the options of [StartKafkaCluster].
type KafkaClusterOptions struct {
	// Servers is the number of servers, at least 1.
	Servers int
	// Settings are settings of server.properties of all servers.
	Settings map[string]string
	// Advertise returns the address at which clients reach the server that listens on addr, such as
	// that of a proxy. nil means addr.
	Advertise func(addr string) (string, error)
	// AdvertiseToBrokers does the same for the address at which the other servers reach it.
	AdvertiseToBrokers func(addr string) (string, error)
	// Prepare is called with the number of each server, from 0, and the directory of its data before
	// that is used. May be nil.
	Prepare func(i int, dir string) error
}

// NewKafkaCluster starts a cluster for one test.
func NewKafkaCluster(tb testing.TB, o KafkaClusterOptions) *KafkaCluster {
	tb.Helper()
	return private(tb, func(ctx context.Context, dir string) (*KafkaCluster, error) {
		return StartKafkaCluster(ctx, dir, o)
	})
}

// StartKafkaCluster starts a cluster with its data in dir and returns when all servers serve. If another
// process binds one of the chosen ports first, it tries again with other ports, a few times.
func StartKafkaCluster(ctx context.Context, dir string, o KafkaClusterOptions) (c *KafkaCluster, err error) {
	for try := range bindTries {
		if c, err = startKafkaCluster(ctx, filepath.Join(dir, strconv.Itoa(try)), o); err == nil || !strings.Contains(err.Error(), "Address already in use") {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("start Kafka cluster: %w", err)
	}
	return c, nil
}

// kafkaPorts are the ports of one server: for clients, for other servers, for controllers.
type kafkaPorts struct{ client, broker, controller int }

func startKafkaCluster(ctx context.Context, dir string, o KafkaClusterOptions) (*KafkaCluster, error) {
	c := &KafkaCluster{id: clusterID(rand.Reader)}
	ports := make([]kafkaPorts, o.Servers)
	voters := make([]string, o.Servers)
	for i := range ports {
		for _, port := range []*int{&ports[i].client, &ports[i].broker, &ports[i].controller} {
			var err error
			if *port, err = subprocess.FreePort(); err != nil {
				return nil, err
			}
		}
		voters[i] = fmt.Sprintf("%d@127.0.0.1:%d", i+1, ports[i].controller)
	}
	for i, p := range ports {
		if err := c.prepare(ctx, filepath.Join(dir, strconv.Itoa(i+1)), i, p, strings.Join(voters, ","), o); err != nil {
			return nil, err
		}
	}
	err := c.each(func(i int, s *KafkaServer) error {
		if err := s.format(c.id, c.configs[i]); err != nil {
			return err
		}
		return s.launch(ctx)
	})
	if err != nil {
		return nil, errors.Join(err, c.Stop(ctx))
	}
	return c, nil
}

// prepare adds server i without starting it.
func (c *KafkaCluster) prepare(ctx context.Context, dir string, i int, p kafkaPorts, voters string, o KafkaClusterOptions) error {
	if o.Prepare != nil {
		if err := o.Prepare(i, dir); err != nil {
			return err
		}
	}
	s, err := newKafka(ctx, dir)
	if err != nil {
		return err
	}
	s.addr = fmt.Sprintf("127.0.0.1:%d", p.client)
	advertised, err := advertisedAs(s.addr, o.Advertise)
	if err != nil {
		return err
	}
	among, err := advertisedAs(fmt.Sprintf("127.0.0.1:%d", p.broker), o.AdvertiseToBrokers)
	if err != nil {
		return err
	}
	replicas := min(3, o.Servers)
	settings := map[string]string{
		"node.id": strconv.Itoa(i + 1), "controller.quorum.voters": voters,
		"listeners":                                fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,BROKER://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", p.client, p.broker, p.controller),
		"advertised.listeners":                     fmt.Sprintf("PLAINTEXT://%s,BROKER://%s", advertised, among),
		"listener.security.protocol.map":           "PLAINTEXT:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"inter.broker.listener.name":               "BROKER",
		"default.replication.factor":               strconv.Itoa(replicas),
		"offsets.topic.replication.factor":         strconv.Itoa(replicas),
		"transaction.state.log.replication.factor": strconv.Itoa(replicas),
		"min.insync.replicas":                      strconv.Itoa(min(2, o.Servers)),
		"broker.session.timeout.ms":                "6000",
		"broker.heartbeat.interval.ms":             "1000",
	}
	maps.Copy(settings, o.Settings)
	c.Servers, c.advertised = append(c.Servers, s), append(c.advertised, advertised)
	c.configs = append(c.configs, kafkaConfig(dir, p.client, p.controller, settings))
	return nil
}

func advertisedAs(addr string, advertise func(addr string) (string, error)) (string, error) {
	if advertise == nil {
		return addr, nil
	}
	return advertise(addr)
}

// Addrs returns the addresses at which clients reach the servers.
func (c *KafkaCluster) Addrs() []string { return c.advertised }

// Stop kills all servers, because their data is not needed afterwards.
func (c *KafkaCluster) Stop(context.Context) error {
	return c.each(func(_ int, s *KafkaServer) error {
		if s.PID() == 0 {
			return nil // the server was never started
		}
		return s.Kill()
	})
}

// Lose kills server i and destroys its data. A later Restart of the server starts it empty.
func (c *KafkaCluster) Lose(i int) error {
	s := c.Servers[i]
	if err := s.Kill(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(s.dir, "data")); err != nil {
		return fmt.Errorf("destroy the data of a broker: %w", err)
	}
	return s.format(c.id, c.configs[i])
}

// DeleteTopic deletes a topic with all its records.
func (c *KafkaCluster) DeleteTopic(ctx context.Context, topic string) error {
	return c.call(ctx, func(ctx context.Context, client *kafka.Client) error {
		r, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
		if err != nil {
			return fmt.Errorf("delete topic: %w", err)
		}
		return r.Errors[topic]
	})
}

// CreateTopic creates a topic with the servers' default number of replicas.
func (c *KafkaCluster) CreateTopic(ctx context.Context, topic string, partitions int) error {
	return c.call(ctx, func(ctx context.Context, client *kafka.Client) error {
		r, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
			Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: partitions, ReplicationFactor: -1}},
		})
		if err != nil {
			return fmt.Errorf("create topic: %w", err)
		}
		return r.Errors[topic]
	})
}

// KafkaTopic is what the servers say about a topic.
type KafkaTopic struct {
	// Partitions is the number of partitions, 0 if the topic does not exist.
	Partitions int
	// Led is the number of partitions that each server leads, by its number from 0.
	Led map[int]int
	// InSync is the smallest number of replicas in sync of any partition.
	InSync int
}

// Topic returns what the servers say about a topic.
func (c *KafkaCluster) Topic(ctx context.Context, topic string) (found KafkaTopic, err error) {
	err = c.call(ctx, func(ctx context.Context, client *kafka.Client) error {
		found = KafkaTopic{Led: map[int]int{}}
		r, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
		if err != nil {
			return fmt.Errorf("ask for a topic: %w", err)
		}
		for _, t := range r.Topics {
			if errors.Is(t.Error, kafka.UnknownTopicOrPartition) {
				return nil
			}
			if t.Error != nil {
				return t.Error
			}
			for _, p := range t.Partitions {
				found.Partitions++
				found.Led[p.Leader.ID-1]++
				if n := len(p.Isr); found.Partitions == 1 || n < found.InSync {
					found.InSync = n
				}
			}
		}
		return nil
	})
	return found, err
}

// call calls f with a client of each server in turn until it succeeds. The client connects directly,
// except to the servers that the first one names.
func (c *KafkaCluster) call(ctx context.Context, f func(context.Context, *kafka.Client) error) error {
	var errs []error
	for _, s := range c.Servers {
		limited, cancel := context.WithTimeout(ctx, kafkaCallWait)
		err := callKafka(limited, s.addr, f)
		cancel()
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func callKafka(ctx context.Context, addr string, f func(context.Context, *kafka.Client) error) error {
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return err
	}
	transport := &kafka.Transport{DialTimeout: probeWait, IdleTimeout: probeWait}
	defer transport.CloseIdleConnections()
	return f(ctx, &kafka.Client{Addr: tcp, Timeout: kafkaCallWait, Transport: transport})
}

func (c *KafkaCluster) each(f func(i int, s *KafkaServer) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(c.Servers))
	for i, s := range c.Servers {
		wg.Go(func() { errs[i] = f(i, s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
