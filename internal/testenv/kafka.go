package testenv

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/internal/subprocess"
)

// kafkaFlags are Java flags for a server that runs for minutes and shares two cores with all tests. They
// turn off the optimizing compiler (C2), which would use more processor time than the broker itself.
var kafkaFlags = []string{
	"-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
	"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
}

// productionFlags are those of Kafka's own start script.
var productionFlags = []string{
	"-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
	"-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
	"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
}

// RunAsInProduction makes the Kafka servers that this process starts from now on run as Kafka's own
// script starts them, with the optimizing compiler. It is for programs that measure; call it
// before the first start.
func RunAsInProduction() { kafkaFlags = productionFlags }

// KafkaServer is a Kafka of one node that is both broker and controller. Its methods may be called
// concurrently.
type KafkaServer struct {
	javaServer
	run func(args ...string) *exec.Cmd // a program of Kafka's library
}

// NewKafka starts a Kafka server for one test. The test may stop, kill, pause and restart it.
func NewKafka(tb testing.TB) *KafkaServer {
	tb.Helper()
	return private(tb, StartKafka)
}

// StartKafka starts a Kafka server with its data in dir, which it creates. It returns when the server can
// create topics and coordinate consumer groups. The server does not create topics automatically.
func StartKafka(ctx context.Context, dir string) (*KafkaServer, error) {
	return StartKafkaWith(ctx, dir, nil)
}

// StartKafkaWith is [StartKafka] with settings of server.properties, such as log.retention.bytes.
func StartKafkaWith(ctx context.Context, dir string, settings map[string]string) (*KafkaServer, error) {
	s, err := startKafka(ctx, dir, settings)
	if err != nil {
		return nil, fmt.Errorf("start Kafka: %w", err)
	}
	return s, nil
}

func startKafka(ctx context.Context, dir string, settings map[string]string) (*KafkaServer, error) {
	s, err := newKafka(ctx, dir)
	if err != nil {
		return nil, err
	}
	err = s.start(ctx, func(_, _ int) (map[string]string, error) { return settings, nil })
	if err != nil {
		return nil, err
	}
	return s, nil
}

// start starts the server on some port, with the settings for that port and that of the controller.
func (s *KafkaServer) start(ctx context.Context, settings func(port, controller int) (map[string]string, error), format ...string) error {
	id := clusterID(rand.Reader)
	return launchOnSomePort(ctx, &s.javaServer, func(port int) error {
		controller, err := subprocess.FreePort()
		if err != nil {
			return err
		}
		with, err := settings(port, controller)
		if err != nil {
			return err
		}
		return s.format(id, kafkaConfig(s.dir, port, controller, with), format...)
	})
}

// newKafka returns a server with its data in dir that has no address and no configuration yet.
func newKafka(ctx context.Context, dir string) (*KafkaServer, error) {
	java, err := findJava(ctx)
	if err != nil {
		return nil, err
	}
	lib, err := library(ctx, "kafka", kafkaList)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	s := &KafkaServer{javaServer: javaServer{dir: dir}}
	s.run = func(args ...string) *exec.Cmd {
		return exec.Command(java, append(append(slices.Clone(kafkaFlags), "-cp", filepath.Join(lib, "*")), args...)...)
	}
	s.program = func() *exec.Cmd { return s.run("kafka.Kafka", s.config()) }
	s.answers = func(ctx context.Context) error { return joinable(ctx, s.addr, &kafka.Transport{}) }
	return s, nil
}

func (s *KafkaServer) config() string { return filepath.Join(s.dir, "server.properties") }

// format writes the configuration, and formats the data directory if it is new.
func (s *KafkaServer) format(cluster string, config []byte, args ...string) error {
	if err := os.WriteFile(s.config(), config, 0o600); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(s.dir, "data", "meta.properties")); err == nil {
		return nil
	}
	cmd := s.run(append([]string{"kafka.tools.StorageTool", "format", "-t", cluster, "-c", s.config()}, args...)...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("format data directory: %w: %s", err, bytes.TrimSpace(out[max(0, len(out)-lastWords):]))
	}
	return nil
}

// clusterID returns a random cluster id, 16 bytes in base64. Its first bit is 0, so the text starts with
// a letter. Kafka's tool would parse an argument that starts with "-" as an option.
func clusterID(random io.Reader) string {
	var id [16]byte
	io.ReadFull(random, id[:]) //nolint:errcheck // crypto/rand never fails
	id[0] &= 0x7f
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// kafkaConfig returns the content of server.properties. The lines of settings follow the defaults and
// override them.
func kafkaConfig(dir string, port, controller int, settings map[string]string) []byte {
	text := fmt.Appendf(nil, `node.id=1
process.roles=broker,controller
controller.quorum.voters=1@127.0.0.1:%[2]d
listeners=PLAINTEXT://127.0.0.1:%[1]d,CONTROLLER://127.0.0.1:%[2]d
advertised.listeners=PLAINTEXT://127.0.0.1:%[1]d
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs=%[3]s
num.partitions=4
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=9000
broker.heartbeat.interval.ms=500
group.min.session.timeout.ms=500
log.segment.bytes=67108864
log.cleaner.dedupe.buffer.size=8388608
`, port, controller, filepath.Join(dir, "data"))
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		text = fmt.Appendf(text, "%s=%s\n", name, settings[name])
	}
	return text
}

// joinable asks the broker for the coordinator of a group. The broker answers when it is up and the
// offsets topic exists. The request creates that topic, which would otherwise delay the first consumer
// group by seconds.
func joinable(ctx context.Context, addr string, transport *kafka.Transport) error {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	transport.DialTimeout, transport.IdleTimeout = probeWait, probeWait
	defer transport.CloseIdleConnections()
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return err
	}
	client := &kafka.Client{Addr: tcp, Timeout: probeWait, Transport: transport}
	found, err := client.FindCoordinator(ctx, &kafka.FindCoordinatorRequest{
		Key: "perceptor-" + strconv.Itoa(os.Getpid()), KeyType: kafka.CoordinatorKeyTypeConsumer,
	})
	if err != nil {
		return err
	}
	if found.Error != nil {
		return found.Error
	}
	if found.Coordinator == nil || found.Coordinator.Port == 0 {
		return errors.New("Kafka has no coordinator for the group yet")
	}
	return nil
}
