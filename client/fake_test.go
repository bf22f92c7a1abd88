package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/testenv"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/record"
	"github.com/perceptor/perceptor/task"
)

const (
	testTopic = "perceptor.shop"
	testToken = "secret-of-shop"
	patience  = 3 * time.Minute
)

// fakeService is the API in memory. before may return the answer to a call.
type fakeService struct {
	perceptorv1.UnimplementedRunServiceServer
	perceptorv1.UnimplementedTaskServiceServer

	brokers []string
	topic   string // also the name of the group
	lease   time.Duration

	mu      sync.Mutex
	changed *sync.Cond
	before  func(ctx context.Context, op string) error
	// refuse may return why a task of an add is not stored.
	refuse func(*perceptorv1.Task) *rpcstatus.Status
	// code may return the answer to an entry; the entry is then not applied.
	code    func(op string, a *perceptorv1.Attempt) perceptorv1.RunCode
	runs    map[task.RunID]*refRun
	terms   map[int64]*perceptorv1.RunTerms // terms of tasks, for starts and checks
	results []*perceptorv1.RunResult        // in the order of their arrival
	by      *perceptorv1.Listener           // of the last call with results
	codes   map[string]int                  // "report ACCEPTED" and so on
	calls   map[string]int
	adds    []*perceptorv1.AddTasksRequest
	singles []*perceptorv1.AddTaskRequest
	tasks   []*perceptorv1.Task
	stored  map[string]*perceptorv1.AddTasksResponse // by request id, if no task was refused
	keys    []*perceptorv1.RecordKey                 // nil: that of testKey
}

func (s *fakeService) hook(ctx context.Context, op string) error {
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("authorization")) != 1 || md.Get("authorization")[0] != "Bearer "+testToken {
		return status.Error(codes.Unauthenticated, "no such token")
	}
	s.mu.Lock()
	f := s.before
	s.calls[op]++
	s.changed.Broadcast()
	s.mu.Unlock()
	if f != nil {
		return f(ctx, op)
	}
	return nil
}

func (s *fakeService) each(op string, a *perceptorv1.Attempt, judge func(*refRun) task.Code) *perceptorv1.RunReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	reply := &perceptorv1.RunReply{Lease: durationpb.New(s.lease)}
	if s.code != nil {
		reply.Code = s.code(op, a)
	}
	if reply.Code == 0 {
		r := s.runs[task.RunID{Task: task.ID(a.GetTaskId()), Seq: a.GetSeq()}]
		if r == nil {
			reply.Code = perceptorv1.RunCode_RUN_CODE_UNKNOWN
		} else {
			reply.Code = perceptorv1.RunCode(judge(r))
		}
	}
	s.codes[op+" "+task.Code(reply.Code).String()]++
	s.changed.Broadcast()
	return reply
}

func (s *fakeService) StartRuns(ctx context.Context, q *perceptorv1.StartRunsRequest) (*perceptorv1.StartRunsResponse, error) {
	if err := s.hook(ctx, "start"); err != nil {
		return nil, err
	}
	a := &perceptorv1.StartRunsResponse{}
	for _, e := range q.GetAttempts() {
		a.Replies = append(a.Replies, s.each("start", e, func(r *refRun) task.Code { return r.start(e.GetAttempt(), q.GetHolder()) }))
		a.Replies[len(a.Replies)-1].Terms = s.terms[e.GetTaskId()]
	}
	return a, nil
}

func (s *fakeService) CheckRuns(ctx context.Context, q *perceptorv1.CheckRunsRequest) (*perceptorv1.CheckRunsResponse, error) {
	if err := s.hook(ctx, "check"); err != nil {
		return nil, err
	}
	a := &perceptorv1.CheckRunsResponse{}
	for _, e := range q.GetAttempts() {
		r := s.each("check", e, func(r *refRun) task.Code { return r.check(e.GetAttempt()) })
		r.Lease, r.Terms = nil, s.terms[e.GetTaskId()]
		a.Replies = append(a.Replies, r)
	}
	return a, nil
}

func (s *fakeService) ReportResults(ctx context.Context, q *perceptorv1.ReportResultsRequest) (*perceptorv1.ReportResultsResponse, error) {
	if err := s.hook(ctx, "report"); err != nil {
		return nil, err
	}
	a := &perceptorv1.ReportResultsResponse{}
	s.mu.Lock()
	s.by = q.GetListener()
	s.mu.Unlock()
	for _, e := range q.GetResults() {
		s.mu.Lock()
		s.results = append(s.results, e)
		s.mu.Unlock()
		a.Replies = append(a.Replies, s.each("report", e.GetAttempt(), func(r *refRun) task.Code {
			return r.report(e.GetAttempt().GetAttempt(), q.GetHolder(), task.Result{
				Outcome: task.Outcome(e.GetOutcome()), Permanent: e.GetPermanent(), Stop: e.GetStop(),
			})
		}))
	}
	return a, nil
}

func (s *fakeService) HeartbeatRuns(ctx context.Context, q *perceptorv1.HeartbeatRunsRequest) (*perceptorv1.HeartbeatRunsResponse, error) {
	if err := s.hook(ctx, "beat"); err != nil {
		return nil, err
	}
	a := &perceptorv1.HeartbeatRunsResponse{}
	for _, e := range q.GetAttempts() {
		a.Replies = append(a.Replies, s.each("beat", e, func(r *refRun) task.Code { return r.beat(e.GetAttempt(), q.GetHolder()) }))
	}
	return a, nil
}

func (s *fakeService) HandBackRuns(ctx context.Context, q *perceptorv1.HandBackRunsRequest) (*perceptorv1.HandBackRunsResponse, error) {
	if err := s.hook(ctx, "hand back"); err != nil {
		return nil, err
	}
	a := &perceptorv1.HandBackRunsResponse{}
	for _, e := range q.GetAttempts() {
		a.Replies = append(a.Replies, s.each("hand back", e, func(r *refRun) task.Code { return r.handBack(e.GetAttempt(), q.GetHolder()) }))
	}
	return a, nil
}

func (s *fakeService) GetDelivery(ctx context.Context, _ *perceptorv1.GetDeliveryRequest) (*perceptorv1.Delivery, error) {
	if err := s.hook(ctx, "delivery"); err != nil {
		return nil, err
	}
	return &perceptorv1.Delivery{Tenant: "shop", Topic: s.topic, Group: s.topic, Brokers: s.brokers, RecordKeys: s.recordKeys(), Now: timestamppb.Now()}, nil
}

// recordKeys returns the keys of the tenant.
func (s *fakeService) recordKeys() []*perceptorv1.RecordKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys != nil {
		return s.keys
	}
	return []*perceptorv1.RecordKey{{Id: 1, Secret: []byte("secret of the key")}}
}

// with changes the service under its lock.
func (s *fakeService) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.changed.Broadcast()
}

// await waits until cond, called under the lock, is true.
func (s *fakeService) await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	over := false
	timer := time.AfterFunc(patience, func() { s.with(func() { over = true }) })
	defer timer.Stop()
	for !cond() {
		if over {
			t.Fatalf("timed out after %s waiting for %s; answers so far: %v; open runs: %v", patience, what, s.codes, s.open())
		}
		s.changed.Wait()
	}
}

func (s *fakeService) count(key string) func() bool { return func() bool { return s.codes[key] > 0 } }

// bench is a service, a broker and a client, all in this process.
type bench struct {
	t       testing.TB
	svc     *fakeService
	address string
	kafka   *kfake.Cluster // nil with a real broker
	admin   *kafka.Client
	client  *Client
	logs    *lockedBuffer
	writer  *kafka.Writer
}

func setup(t testing.TB, partitions int32) *bench {
	t.Helper()
	return setupBrokers(t, 1, partitions)
}

// setupBrokers is setup with several brokers.
func setupBrokers(t testing.TB, brokers int, partitions int32) *bench {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(brokers), kfake.SeedTopics(partitions, testTopic), kfake.GroupMinSessionTimeout(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	b := setupOn(t, cluster.ListenAddrs(), testTopic)
	b.kafka = cluster
	return b
}

// setupReal is setup with a real broker and a topic of the test's own.
func setupReal(t testing.TB, server *testenv.KafkaServer, partitions int) *bench {
	t.Helper()
	b := setupOn(t, []string{server.Addr()}, testenv.TopicPrefix(t)+"runs")
	answer, err := b.admin.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: b.svc.topic, NumPartitions: partitions, ReplicationFactor: 1}},
	})
	if err == nil {
		err = answer.Errors[b.svc.topic]
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func setupOn(t testing.TB, brokers []string, topic string) *bench {
	t.Helper()
	b := &bench{t: t, logs: &lockedBuffer{}, svc: newFakeService(brokers)}
	b.svc.topic = topic
	b.address = serve(t, b.svc, "127.0.0.1:0")
	b.client = b.newClient(Config{})
	transport := &kafka.Transport{MetadataTTL: time.Second}
	b.admin = &kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport, Timeout: patience}
	b.writer = &kafka.Writer{
		Addr: kafka.TCP(brokers...), Topic: topic, RequiredAcks: kafka.RequireAll,
		BatchTimeout: time.Millisecond, BatchSize: 1000, Transport: transport,
		Balancer: kafka.BalancerFunc(func(m kafka.Message, partitions ...int) int { return m.Partition % len(partitions) }),
	}
	t.Cleanup(func() { b.writer.Close(); transport.CloseIdleConnections() })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the listeners:\n%s", b.logs)
		}
	})
	return b
}

func newFakeService(brokers []string) *fakeService {
	s := &fakeService{brokers: brokers, lease: time.Minute, runs: map[task.RunID]*refRun{}, codes: map[string]int{}, calls: map[string]int{}, stored: map[string]*perceptorv1.AddTasksResponse{}}
	s.changed = sync.NewCond(&s.mu)
	s.refuse = func(*perceptorv1.Task) *rpcstatus.Status { return nil }
	return s
}

// serve serves s until the test ends and returns its address.
func serve(t testing.TB, s *fakeService, address string) string {
	t.Helper()
	return serveOn(t, address, func(server *grpc.Server) {
		perceptorv1.RegisterRunServiceServer(server, s)
		perceptorv1.RegisterTaskServiceServer(server, s)
	})
}

// serveOn serves what register registers until the test ends and returns its address.
func serveOn(t testing.TB, address string, register func(*grpc.Server), opts ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(opts...)
	register(server)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().String()
}

func (b *bench) newClient(cfg Config) *Client {
	b.t.Helper()
	setDefault(&cfg.Address, b.address)
	setDefault(&cfg.Token, testToken)
	c, err := New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return c
}

// fast has short times of the consumer group. A machine that stands still for some seconds ends no session.
var fast = groupTimes{
	session: 15 * time.Second, heartbeat: 50 * time.Millisecond, rebalance: 15 * time.Second, backoff: 50 * time.Millisecond,
	commit: 20 * time.Millisecond, rest: 20 * time.Millisecond, settle: 500 * time.Millisecond,
}

// liveListener is a running listener.
type liveListener struct {
	*Listener
	cancel context.CancelFunc
	done   chan error
}

// listen starts a listener, which is stopped at the latest when the test ends.
func (b *bench) listen(cfg ListenerConfig, handlers map[string]Handler) *liveListener {
	b.t.Helper()
	l := b.listener(cfg)
	for kind, h := range handlers {
		l.Handle(kind, h)
	}
	return b.start(l)
}

// listener returns a listener without handlers.
func (b *bench) listener(cfg ListenerConfig) *Listener {
	b.t.Helper()
	setDefault(&cfg.kafka, fast)
	cfg.Logger = slog.New(slog.NewTextHandler(b.logs, nil))
	setDefault(&cfg.StopGrace, 5*time.Second)
	l, err := b.client.NewListener(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

// start runs a listener, which is stopped at the latest when the test ends.
func (b *bench) start(l *Listener) *liveListener {
	ctx, cancel := context.WithCancel(context.Background())
	r := &liveListener{Listener: l, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- l.Run(ctx) }()
	b.t.Cleanup(func() { r.stop(b.t) })
	return r
}

// idle reports whether no run is active.
func (r *liveListener) idle() bool {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	return len(r.engine.table.active) == 0
}

// stop stops the listener and waits for it.
func (r *liveListener) stop(t testing.TB) {
	t.Helper()
	r.cancel()
	select {
	case err := <-r.done:
		if err != nil {
			t.Errorf("Run returned %v", err)
		}
		r.done <- nil
	case <-time.After(patience):
		t.Error("the listener does not stop")
	}
}

// run returns the first delivery of a run of a new task.
func newRunOf(number int64, typ task.Type, kind string, params map[string]string) task.Publication {
	wire, err := proto.Marshal(&perceptorv1.Params{Entries: params})
	if err != nil {
		panic(err)
	}
	return task.Publication{
		Task: task.NewID(number, 1), Seq: 1, Attempt: 1, Type: typ, Kind: kind, Params: wire,
		ScheduledAt: task.At(time.Now()), ClaimedAt: task.At(time.Now()), Version: 1, AckTimeout: time.Minute,
	}
}

// publish registers the runs with the service and writes their records to
// Kafka.
func (b *bench) publish(pubs ...task.Publication) {
	b.t.Helper()
	b.publishAt(time.Time{}, pubs...)
}

// publishAt is publish with the time of the records; the zero value means now.
func (b *bench) publishAt(at time.Time, pubs ...task.Publication) {
	b.t.Helper()
	messages := make([]kafka.Message, len(pubs))
	b.svc.with(func() {
		for i, p := range pubs {
			if b.svc.runs[p.RunID()] == nil {
				b.svc.runs[p.RunID()] = newRefRun(p.Type, 5)
			}
			messages[i] = signedMessage(p, testKey)
			messages[i].Time = at
		}
	})
	b.write(messages...)
}

// testKey signs the records.
var testKey = record.NewKey(1, []byte("secret of the key"))

// signedMessage returns the record of a run, signed with a key.
func signedMessage(p task.Publication, key *record.Key) kafka.Message {
	k, value, headers := record.Encode(p, "shop")
	m := kafka.Message{Key: k, Value: value, Partition: record.Partition(p.Task, 12)}
	for _, h := range key.Signer().Sign(value, headers) {
		m.Headers = append(m.Headers, kafka.Header(h))
	}
	return m
}

// signedValue returns a record with any value, signed with testKey.
func signedValue(value []byte, partition int) kafka.Message {
	m := kafka.Message{Key: []byte("k"), Value: value, Partition: partition}
	for _, h := range testKey.Signer().Sign(value, []record.Header{{Key: record.HeaderType, Value: []byte(record.EventType)}}) {
		m.Headers = append(m.Headers, kafka.Header(h))
	}
	return m
}

func (b *bench) write(messages ...kafka.Message) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := b.writer.WriteMessages(ctx, messages...)
		var partly kafka.WriteErrors
		switch {
		case err == nil:
			return
		case ctx.Err() != nil:
			b.t.Fatal(err)
		case errors.As(err, &partly): // a broker that has just started has no leaders yet
			messages = unwritten(messages, partly)
		}
		ctxtime.Sleep(ctx, 100*time.Millisecond)
	}
}

func unwritten(messages []kafka.Message, errs kafka.WriteErrors) []kafka.Message {
	var rest []kafka.Message
	for i, err := range errs {
		if err != nil {
			rest = append(rest, messages[i])
		}
	}
	return rest
}

// redeliver claims the run again and publishes the new attempt.
func (b *bench) redeliver(p task.Publication) {
	b.t.Helper()
	b.svc.with(func() { p.Attempt = b.svc.runs[p.RunID()].deliver() })
	if p.Attempt == 0 {
		b.t.Fatalf("run %s: it has no row that could cause another delivery", p.RunID())
	}
	b.publish(p)
}

// lag returns the number of records whose offset is not committed.
func (b *bench) lag() int64 {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	partitions := make([]int, b.partitions())
	ends := make([]kafka.OffsetRequest, len(partitions))
	for i := range partitions {
		partitions[i], ends[i] = i, kafka.LastOffsetOf(i)
	}
	committed, err := b.admin.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: b.svc.topic, Topics: map[string][]int{b.svc.topic: partitions}})
	if err != nil {
		b.t.Fatal(err)
	}
	last, err := b.admin.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{b.svc.topic: ends}})
	if err != nil {
		b.t.Fatal(err)
	}
	var lag int64
	for _, p := range last.Topics[b.svc.topic] {
		lag += p.LastOffset
	}
	for _, p := range committed.Topics[b.svc.topic] {
		lag -= max(0, p.CommittedOffset)
	}
	return lag
}

func (b *bench) partitions() int {
	b.t.Helper()
	m, err := b.admin.Metadata(context.Background(), &kafka.MetadataRequest{Topics: []string{b.svc.topic}})
	if err != nil || len(m.Topics) != 1 {
		b.t.Fatalf("metadata of %s: %v", b.svc.topic, err)
	}
	return len(m.Topics[0].Partitions)
}

func (b *bench) awaitCommitted() {
	b.t.Helper()
	b.eventually("all offsets are committed", func() bool { return b.lag() == 0 })
}

func (b *bench) eventually(what string, cond func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("timed out after %s waiting until %s; answers: %v", patience, what, b.answers())
		}
	}
}

func (b *bench) answers() string {
	b.svc.mu.Lock()
	defer b.svc.mu.Unlock()
	return fmt.Sprint(b.svc.codes)
}

// lockedBuffer collects logs.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() > 64<<10 {
		l.b.Reset()
	}
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// within receives from ch, or fails the test after a while.
func within[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("timed out after %s waiting for %s", patience, what)
		panic("unreachable")
	}
}

// open describes the runs without a final result. The caller holds the lock.
func (s *fakeService) open() []string {
	var list []string
	for id, r := range s.runs {
		if r.final == 0 && len(list) < 10 {
			list = append(list, fmt.Sprintf("%s %+v", id, *r))
		}
	}
	return list
}
