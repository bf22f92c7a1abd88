package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// http2Client speaks HTTP/2 by hand, so that it can leave requests unfinished.
type http2Client struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	mu     sync.Mutex
	// windows has what may be sent on each stream, and on the connection as stream 0.
	windows map[uint32]int
	ended   map[uint32]bool
	closed  chan struct{} // when the connection has ended
	changed chan struct{}
}

func newHTTP2Client(t *testing.T, conn net.Conn) *http2Client {
	t.Helper()
	c := &http2Client{
		t: t, conn: conn, framer: http2.NewFramer(conn, conn), windows: map[uint32]int{0: 65535},
		ended: map[uint32]bool{}, changed: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	c.write(func() error { _, err := io.WriteString(conn, http2.ClientPreface); return err })
	c.write(func() error { return c.framer.WriteSettings() })
	go func() { defer close(c.closed); c.read() }()
	t.Cleanup(func() { _ = conn.Close(); <-c.closed })
	return c
}

func (c *http2Client) write(f func() error) {
	c.t.Helper()
	if err := f(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *http2Client) read() {
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return
		}
		c.mu.Lock()
		switch f := frame.(type) {
		case *http2.WindowUpdateFrame:
			c.windows[f.StreamID] += int(f.Increment)
		case *http2.HeadersFrame:
			c.ended[f.StreamID] = c.ended[f.StreamID] || f.StreamEnded()
		case *http2.RSTStreamFrame:
			c.ended[f.StreamID] = true
		}
		c.mu.Unlock()
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
}

// open begins a call that announces a request of n bytes.
func (c *http2Client) open(stream uint32, secret, method string, n uint32) {
	c.t.Helper()
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "test"},
		{"content-type", "application/grpc"}, {"te", "trailers"}, {"authorization", "Bearer " + secret},
	} {
		c.write(func() error { return e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) })
	}
	c.write(func() error {
		return c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
	})
	c.mu.Lock()
	c.windows[stream] += 64 << 10
	c.mu.Unlock()
	c.send(stream, binary.BigEndian.AppendUint32([]byte{0}, n))
}

func (c *http2Client) send(stream uint32, data []byte) {
	c.t.Helper()
	c.mu.Lock()
	c.windows[stream] -= len(data)
	c.windows[0] -= len(data)
	c.mu.Unlock()
	c.write(func() error { return c.framer.WriteData(stream, false, data) })
}

// sendAll sends up to n bytes on each stream, as far as the server lets it, until nothing
// moves for a while. It returns the number of bytes. For the first ones, least bytes, it waits for longer.
func (c *http2Client) sendAll(streams []uint32, n, least int) (sent int) {
	c.t.Helper()
	left := map[uint32]int{}
	for _, s := range streams {
		left[s] = n
	}
	for {
		moved := false
		for _, s := range streams {
			c.mu.Lock()
			size := min(left[s], c.windows[s], c.windows[0], 16<<10)
			c.mu.Unlock()
			if size > 0 {
				c.send(s, make([]byte, size))
				left[s], sent, moved = left[s]-size, sent+size, true
			}
		}
		if !moved {
			quiet := 300 * time.Millisecond
			if sent < least {
				quiet = 15 * time.Second
			}
			select {
			case <-c.changed:
			case <-time.After(quiet):
				return sent
			}
		}
	}
}

// counted collects the limits that refused something.
type counted struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counted) add(limit string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[limit]++
}

func (c *counted) of(limit string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[limit]
}

// unfinished begins n calls of which it sends only the headers.
func (b *bundle) unfinished(secret string, n int) []grpc.ClientStream {
	b.t.Helper()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+secret))
	b.t.Cleanup(cancel)
	streams := make([]grpc.ClientStream, n)
	for i := range streams {
		streams[i] = must(b.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, getTask))(b.t)
	}
	return streams
}

func TestUnfinishedRequestsOfOneTenantStopNoOtherAndEnd(t *testing.T) {
	t.Parallel()
	var refused counted
	b := setup(t, func(c *Config) {
		c.MaxCalls, c.ReceiveTimeout, c.Events.Limited = 100, 8*time.Second, refused.add // all of them are there before the first one ends
	})
	streams := b.unfinished("acme-secret", 300)
	for range 20 {
		a := b.overGRPC("rival-secret", listTasks, &perceptorv1.ListTasksRequest{}, &perceptorv1.ListTasksResponse{})
		if a.code != codes.OK {
			t.Fatalf("another tenant during the flood: %s %s", a.code, a.reason)
		}
	}
	reasons := map[string]int{}
	for _, s := range streams {
		reasons[b.answerOf(status.Convert(s.RecvMsg(&perceptorv1.Task{}))).reason]++
	}
	if slow, busy := reasons["REQUEST_TOO_SLOW"], reasons["TENANT_BUSY"]; slow < 1 || slow > 50 || slow+busy != 300 {
		t.Errorf("the flood was answered with %v; half of 100 calls may be received", reasons)
	}
	if refused.of("TENANT_BUSY") != reasons["TENANT_BUSY"] {
		t.Errorf("%d refusals are counted, %d were sent", refused.of("TENANT_BUSY"), reasons["TENANT_BUSY"])
	}
	if a := b.overGRPC("acme-secret", listTasks, &perceptorv1.ListTasksRequest{}, &perceptorv1.ListTasksResponse{}); a.code != codes.OK {
		t.Errorf("the tenant itself after the flood: %s", a.code)
	}
}

func TestAConnectionReceivesABoundedNumberOfBytes(t *testing.T) {
	t.Parallel()
	const largest, streams = 1 << 20, 80
	for _, method := range []string{addTasks, perceptorv1.ExportService_ExportTasks_FullMethodName} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
			b := setup(t, func(c *Config) { c.GRPC, c.MaxRequestBytes, c.ReceiveTimeout = l, largest, 20*time.Second })
			c := newHTTP2Client(t, must(net.Dial("tcp", l.Addr().String()))(t))
			var ids []uint32
			for i := range streams {
				ids = append(ids, uint32(2*i+1))
				c.open(ids[i], "acme-secret", method, largest-1)
			}
			sent := c.sendAll(ids, largest-2, largest)
			if most := connIntakeRequests*largest + streams*streamWindow + connWindow; sent > most || sent < largest {
				t.Errorf("the server has received %d bytes of unfinished requests, want at most %d", sent, most)
			}
			if a := b.fetch("rival-secret", http.MethodGet, "/v1/tasks", "", nil); a.http != http.StatusOK {
				t.Errorf("another tenant during the flood: %d %s", a.http, a.body)
			}
		})
	}
}

func TestTheRequestOfAnExportMustArriveInTimeAndIsChargedUntilTheCallEnds(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *Config) { c.ReceiveTimeout = 50 * time.Millisecond })
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer acme-secret")
	for i := range 2 * connIntakeRequests { // more than fit at once
		s := must(b.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, perceptorv1.ExportService_ExportTasks_FullMethodName))(t)
		if a := b.answerOf(status.Convert(s.RecvMsg(&perceptorv1.ExportChunk{}))); a.reason != "REQUEST_TOO_SLOW" {
			t.Fatalf("export %d without a request: %s %s", i, a.code, a.reason)
		}
	}
}

// want sends a whole request.
func (c *http2Client) want(stream uint32, secret, method string, request proto.Message) {
	c.t.Helper()
	wire := must(proto.Marshal(request))(c.t)
	c.open(stream, secret, method, uint32(len(wire)))
	c.write(func() error { return c.framer.WriteData(stream, true, wire) })
}

func TestAnswersThatAreNotReadAreChargedUntilTheirConnectionEnds(t *testing.T) {
	t.Parallel()
	const size, streams = largestAnswer / 8, 5
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	b := setup(t, func(c *Config) { c.GRPC, c.CallTimeout = l, 4*time.Second }) // twice that long the answers of a flood can be seen
	id := task.NewID(1, 7)
	params := must(proto.Marshal(&perceptorv1.Params{Entries: map[string]string{"x": strings.Repeat("x", size)}}))(t)
	b.tasks.put(&task.Snapshot{Row: task.Row{Tenant: acme.ID, ID: id, Params: params}, FinishedAt: task.Never})
	charged := func() int64 { return answers*largestAnswer - b.server.answers.tenants.Free() }
	await := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d bytes are charged", what, charged())
			}
		}
	}
	flood := func() *http2Client {
		c := newHTTP2Client(t, must(net.Dial("tcp", l.Addr().String()))(t))
		c.write(func() error { return c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) })
		for i := range streams {
			c.want(uint32(2*i+1), "acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: int64(id)})
		}
		await("answers wait for their caller", func() bool { return charged() > size*streams })
		return c
	}
	c := flood()
	await("the server closes the connection", func() bool { return charged() == 0 })
	<-c.closed
	c = flood()
	for i := range streams { // a caller that gives up its calls
		c.write(func() error { return c.framer.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel) })
	}
	await("the calls have ended", func() bool { return charged() == 0 })
	c = flood()
	_ = c.conn.Close()
	await("the caller has closed the connection", func() bool { return charged() == 0 })
	if a := b.fetch("acme-secret", http.MethodGet, "/v1/tasks", "", nil); a.http != http.StatusOK || charged() != 0 {
		t.Errorf("%d %s, %d bytes are charged", a.http, a.body, charged())
	}
}

func TestAnAnswerOnTheConnectionOfAProxyEndsNoCallsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		c := &connection{Conn: near, users: make([]*tenantUse, 2)}
		pool := newBudget(time.Second, 1000, 1000)
		s := &sending{held: must(pool.charge(t.Context(), 1, netip.AddrPort{}, 100))(t), conn: c}
		c.users[0], c.users[1] = &tenantUse{connections: 1}, &tenantUse{connections: 1}
		c.send(s, time.Second)
		time.Sleep(time.Minute)
		synctest.Wait()
		if c.closed || pool.tenants.Free() != 900 {
			t.Errorf("closed: %v, %d bytes are free", c.closed, pool.tenants.Free())
		}
		s.done()
		time.Sleep(time.Minute)
		synctest.Wait()
		if pool.tenants.Free() != 1000 || c.out.check != nil {
			t.Errorf("%d bytes are free, checked: %v", pool.tenants.Free(), c.out.check != nil)
		}
	})
}

func TestAnHTTPBodyThatDoesNotArriveEndsTheRequest(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *Config) { c.ReceiveTimeout = 200 * time.Millisecond })
	body, end := io.Pipe()
	defer end.Close()
	began := time.Now()
	a := b.do("acme-secret", must(http.NewRequest(http.MethodPost, "http://memory/v1/tasks", body))(t), nil)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the request ended after %v", took)
	}
	if a.http != http.StatusRequestTimeout || a.reason != "REQUEST_TOO_SLOW" {
		t.Errorf("%d %s", a.http, a.body)
	}
}

func TestACallOverHTTPMayTakeLongerThanItsBody(t *testing.T) {
	t.Parallel()
	const arrives = 5 * time.Second
	b := setup(t, func(c *Config) { c.ReceiveTimeout = arrives })
	b.tasks.hold, b.tasks.holding = make(chan struct{}), make(chan struct{})
	began := time.Now()
	time.AfterFunc(arrives+time.Second, func() { close(b.tasks.hold) })
	body := `{"params":{"a":"b"}}`
	r := must(http.NewRequest(http.MethodPatch, "http://memory/v1/tasks/1000?updateMask=params", strings.NewReader(body)))(t)
	if a := b.do("acme-secret", r, nil); a.reason != "TASK_NOT_FOUND" || time.Since(began) < arrives {
		t.Errorf("after %v: %d %s", time.Since(began), a.http, a.body)
	}
}

func TestConnectionsOfOneSourceLeavePlacesForOthers(t *testing.T) {
	t.Parallel()
	var refused counted
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	setup(t, func(c *Config) { c.GRPC, c.MaxConnections, c.Events.Limited = l, 8, refused.add })
	dial := func(from string) bool {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute}
		conn, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Skipf("this host has no address %s: %v", from, err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		_, err = conn.Read(make([]byte, 1)) // the server's settings, unless it closes the connection
		return err == nil
	}
	for i := range 6 {
		if open := dial("127.0.0.1"); open != (i < 4) {
			t.Errorf("connection %d of the first source is open: %v", i+1, open)
		}
	}
	if !dial("127.0.0.2") {
		t.Error("no place is left for a second source")
	}
	if n := refused.of("CONNECTIONS"); n != 2 {
		t.Errorf("%d refused connections are counted, want 2", n)
	}
}

func TestWatchesOfHealthAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	client := grpc_health_v1.NewHealthClient(b.conn)
	var first, refused int
	for range maxWatches/2 + 10 {
		w := must(client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{}))(t)
		if _, err := w.Recv(); status.Code(err) == codes.Unavailable {
			refused++
		} else {
			first++
		}
	}
	if first != maxWatches/2 || refused != 10 {
		t.Errorf("%d watches run and %d were refused", first, refused)
	}
}

func TestAFloodOfUnknownTokensIsHeldBackAndValidOnesPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &existingTokens{fakeAuth: &fakeAuth{}}
		b := newBearers(source)
		valid := func() error {
			_, err := b.identify(t.Context(), []string{"Bearer acme-secret"})
			return err
		}
		if err := valid(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * rememberKnown)
		refused := 0
		for i := range 5000 {
			_, err := b.identify(t.Context(), []string{fmt.Sprintf("Bearer %d", i)})
			if a := unpacked(status.Convert(err)); a.reason == "TOO_MANY_BAD_TOKENS" {
				refused++
			} else if a.reason != "TOKEN_REFUSED" {
				t.Fatalf("%v", err)
			}
		}
		if asked := source.asks.Load() - 1; asked > lookUpBurst || refused != 5000-int(asked) {
			t.Errorf("%d look-ups and %d refusals of 5000 unknown tokens, want at most %d look-ups", asked, refused, lookUpBurst)
		}
		if err := valid(); err != nil {
			t.Errorf("a token that was valid before the flood: %v", err)
		}
		if _, err := b.identify(t.Context(), []string{"Bearer rival-secret"}); err != nil {
			t.Errorf("a valid token that was not seen before: %v", err)
		}
		time.Sleep(time.Second)
		if _, err := b.identify(t.Context(), []string{"Bearer another"}); unpacked(status.Convert(err)).reason != "TOKEN_REFUSED" {
			t.Errorf("a second later: %v", err)
		}
	})
}

// existingTokens knows which tokens exist, and counts look-ups.
type existingTokens struct {
	*fakeAuth
	asks atomic.Int64
}

func (e *existingTokens) Exists(secret string) bool { _, ok := identities[secret]; return ok }

func (e *existingTokens) Authenticate(ctx context.Context, secret string) (Identity, error) {
	e.asks.Add(1)
	return e.fakeAuth.Authenticate(ctx, secret)
}

func TestSettingsOfOneTenantChangeABoundedNumberOfTimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pause := perceptorv1.TaskService_PauseKind_FullMethodName
	last, changes := answer{}, 0
	for ; changes < 10*settingBurst && last.code != codes.ResourceExhausted; changes++ { // a slow machine allows some more meanwhile
		last = b.overGRPC("acme-secret", pause, &perceptorv1.PauseKindRequest{Kind: "k"}, &perceptorv1.PauseKindResponse{})
	}
	if last.code != codes.ResourceExhausted || last.reason != "TOO_MANY_CHANGES" || changes <= settingBurst {
		t.Errorf("after %d changes: %s %s", changes, last.code, last.reason)
	}
	a := b.overGRPC("rival-secret", pause, &perceptorv1.PauseKindRequest{Kind: "k"}, &perceptorv1.PauseKindResponse{})
	if a.reason == "TOO_MANY_CHANGES" {
		t.Error("another tenant is refused, too")
	}
	a = b.overGRPC("admin-secret", perceptorv1.AdminService_PauseTenant_FullMethodName, &perceptorv1.PauseTenantRequest{Name: "acme"}, &perceptorv1.Tenant{})
	if a.reason == "TOO_MANY_CHANGES" {
		t.Error("the operator is refused, too")
	}
}

func TestTheNetworksOfOneSiteHaveTheConnectionsOfOneParty(t *testing.T) {
	t.Parallel()
	const size = 64
	p := newConnectionPlaces(size)
	connect := func(address string) (ok bool) {
		_, ok = p.take(netip.AddrPortFrom(netip.MustParseAddr(address), 1))
		return ok
	}
	taken := 0
	for n := range 2 * size {
		if connect(fmt.Sprintf("2001:db8:1:%x::1", n)) {
			taken++
		}
	}
	if taken != size/2 {
		t.Errorf("a site with %d networks has %d of %d connections, want half", 2*size, taken, size)
	}
	for _, other := range []string{"2001:db8:2::1", "192.0.2.1"} {
		if !connect(other) {
			t.Errorf("%s has no place", other)
		}
	}
	give, ok := p.take(netip.MustParseAddrPort("192.0.2.2:1"))
	if !ok {
		t.Fatal("no place")
	}
	give()
	give() // a second time does nothing
	if p.sources.Free() != p.sites.Free() {
		t.Errorf("%d and %d places are free", p.sources.Free(), p.sites.Free())
	}
}

func TestTokensOfOneTenantChangeABoundedNumberOfTimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	revoke := func(secret string) answer {
		return b.overGRPC(secret, revokeToken, &perceptorv1.RevokeTokenRequest{Id: "pt_9"}, &perceptorv1.Token{})
	}
	last, changes := answer{}, 0
	for ; changes < 10*settingBurst && last.code != codes.ResourceExhausted; changes++ { // a slow machine allows some more meanwhile
		last = revoke("owner-secret")
	}
	if last.code != codes.ResourceExhausted || last.reason != "TOO_MANY_CHANGES" || changes <= settingBurst {
		t.Errorf("after %d changes: %s %s", changes, last.code, last.reason)
	}
	pause := perceptorv1.TaskService_PauseKind_FullMethodName
	if a := b.overGRPC("acme-secret", pause, &perceptorv1.PauseKindRequest{Kind: "k"}, &perceptorv1.PauseKindResponse{}); a.reason == "TOO_MANY_CHANGES" {
		t.Errorf("a change of the same tenant's other settings: %s %s", a.code, a.reason)
	}
	if a := revoke("admin-secret"); a.code != codes.NotFound {
		t.Errorf("an operator's change: %s %s", a.code, a.reason)
	}
}

func TestConnectionsOfOneTenantThatSendNothingLeaveTheIntakeToOthers(t *testing.T) {
	t.Parallel()
	const largest = 1 << 20
	i := newIntake(time.Minute, largest)
	port := func(n int) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(n)) }
	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	for n := range 2 * intakeRequests {
		flood.Go(func() {
			if c, err := i.charge(ctx, 1, port(1000+n), largest); err == nil {
				<-ctx.Done()
				c.shrink(0)
			}
		})
	}
	defer flood.Wait()
	defer cancel()
	time.Sleep(100 * time.Millisecond) // all of them have a share or wait
	soon, end := context.WithTimeout(ctx, 30*time.Second)
	defer end()
	c, err := i.charge(soon, 2, port(1), largest)
	if err != nil {
		t.Fatalf("another tenant during the flood: %v", err)
	}
	c.shrink(0)
}

func TestATenantThatSendsNothingLeavesItsConnectionToOthers(t *testing.T) {
	t.Parallel()
	const largest = 1 << 20
	i := newIntake(time.Second, largest)
	for range connIntakeRequests {
		must(i.charge(t.Context(), 1, netip.AddrPort{}, largest))(t)
	}
	if _, err := i.charge(t.Context(), 1, netip.AddrPort{}, largest); err == nil {
		t.Error("the tenant has more than its share of the connection")
	}
	must(i.charge(t.Context(), 2, netip.AddrPort{}, largest))(t)
}

func TestReportsAboutUnknownRunsAreBoundedByTenant(t *testing.T) {
	t.Parallel()
	b := setup(t)
	call := func(secret string) answer {
		r := &perceptorv1.ReportResultsRequest{Holder: 7}
		for range 1000 {
			r.Results = append(r.Results, &perceptorv1.RunResult{
				Attempt: &perceptorv1.Attempt{TaskId: 1001, Seq: 1, Attempt: 1}, Outcome: perceptorv1.RunResult_SUCCESS,
				NextExecuteTime: timestamppb.New(fakeNow.Time()),
			})
		}
		return b.overGRPC(secret, report, r, &perceptorv1.ReportResultsResponse{})
	}
	for i := range unknownBurst / 1000 {
		if a := call("acme-secret"); a.code != codes.OK {
			t.Fatalf("call %d: %s %s", i, a.code, a.message)
		}
	}
	a := call("acme-secret")
	for tries := 0; a.code == codes.OK && tries < 50; tries++ { // a moment allows one call, which is then owed for two seconds
		a = call("acme-secret")
	}
	if a.code != codes.ResourceExhausted || a.reason != "TOO_MANY_UNKNOWN_RUNS" {
		t.Errorf("after %d unknown runs: %s %s", unknownBurst, a.code, a.reason)
	}
	if a := call("rival-secret"); a.code != codes.OK {
		t.Errorf("another tenant: %s %s", a.code, a.reason)
	}
}

func TestTenantsShareTheConnectionsToDatabases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newStorePlaces()
		for method, each := range map[string]int{getTask: directCalls / 2, listTasks: tenantScanCalls} {
			ctx, cancel := context.WithCancel(t.Context())
			var entered atomic.Int64
			var flood sync.WaitGroup
			for range 100 {
				flood.Go(func() {
					if leave, err := p.enter(ctx, method, 1); err == nil {
						entered.Add(1)
						<-ctx.Done()
						leave()
					}
				})
			}
			synctest.Wait()
			if n := int(entered.Load()); n != each {
				t.Errorf("%s: %d calls of one tenant are in the stores, want %d", method, n, each)
			}
			leave, err := p.enter(t.Context(), method, 2)
			if err != nil {
				t.Fatal(err)
			}
			leave()
			if _, err := p.enter(ctx, method, 1); unpacked(status.Convert(err)).reason != "TENANT_BUSY" {
				t.Errorf("%s: a call that waits for too long gets %v", method, err)
			}
			cancel()
			flood.Wait()
		}
		if p.direct.Free() != directCalls || p.scans.Free() != scanCalls {
			t.Error("places are lost")
		}
	})
}

// trickle sends a request whose body never ends, a byte at a time, and returns the status line of the answer and how
// long it took, and how long the connection lasted.
func (b *bundle) trickle(head string) (line string, answered, ended time.Duration) {
	b.t.Helper()
	conn := must((&net.Dialer{}).DialContext(b.t.Context(), "tcp", b.server.config.HTTP.Addr().String()))(b.t)
	defer conn.Close()
	began := time.Now()
	must(conn.Write([]byte(head + "Host: memory\r\nContent-Length: 100000\r\n\r\n{")))(b.t)
	over := make(chan struct{})
	defer close(over)
	go func() {
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-over:
				tick.Stop()
				return
			case <-tick.C:
				_, _ = conn.Write([]byte(" ")) // until the server has closed the connection
			}
		}
	}()
	r := bufio.NewReader(conn)
	line = must(r.ReadString('\n'))(b.t)
	answered = time.Since(began)
	_, _ = io.Copy(io.Discard, r)
	return strings.TrimSpace(line), answered, time.Since(began)
}

func TestABodyThatIsNotReadHoldsNeitherTheAnswerNorTheConnection(t *testing.T) {
	t.Parallel()
	for head, want := range map[string]string{
		"POST /v1/tasks HTTP/1.1\r\n":                                                 "401",
		"POST /v1/tasks HTTP/1.1\r\nAuthorization: Bearer forged\r\n":                 "401",
		"POST /v1/tasks?pretty=%zz HTTP/1.1\r\nAuthorization: Bearer acme-secret\r\n": "400",
		"GET /v1/openapi.json HTTP/1.1\r\n":                                           "200",
		"POST /v2/unknown HTTP/1.1\r\n":                                               "401",
	} {
		t.Run(head, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.t = t
			line, answered, ended := b.trickle(head)
			if !strings.HasPrefix(line, "HTTP/1.1 "+want) || answered > 5*time.Second || ended > 8*time.Second {
				t.Errorf("%q after %v, the end after %v; want %s within seconds", line, answered, ended, want)
			}
		})
	}
}

// Most clients send the whole body before they read the answer.
func TestWhoSendsABodyThatIsTooLargeSeesTheAnswer(t *testing.T) {
	t.Parallel()
	const size = 9 << 20
	b := setup(t)
	for name, c := range map[string]struct{ head, want string }{
		"with a length":          {"Authorization: Bearer acme-secret\r\nContent-Length: " + strconv.Itoa(size), "413"},
		"in chunks":              {"Authorization: Bearer acme-secret\r\nTransfer-Encoding: chunked", "413"},
		"of an unknown caller":   {"Authorization: Bearer forged\r\nContent-Length: " + strconv.Itoa(size), "401"},
		"that waits to be asked": {"Authorization: Bearer acme-secret\r\nExpect: 100-continue\r\nContent-Length: " + strconv.Itoa(size), "413"},
	} {
		conn := must((&net.Dialer{}).DialContext(b.t.Context(), "tcp", b.server.config.HTTP.Addr().String()))(t)
		defer conn.Close()
		began := time.Now()
		must(fmt.Fprintf(conn, "POST /v1/tasks HTTP/1.1\r\nHost: memory\r\n%s\r\n\r\n", c.head))(t)
		body := `"` + strings.Repeat("x", size-2) + `"`
		switch {
		case strings.Contains(c.head, "Expect"): // never asked
		case strings.Contains(c.head, "chunked"):
			must(fmt.Fprintf(conn, "%x\r\n%s\r\n0\r\n\r\n", size, body))(t)
		default:
			must(io.WriteString(conn, body))(t)
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "HTTP/1.1 "+c.want) {
			t.Errorf("a body %s: %q, %v; want %s", name, line, err, c.want)
		}
		if strings.Contains(c.head, "Expect") && time.Since(began) > unreadWithin/2 {
			t.Errorf("a body %s: answered after %v", name, time.Since(began))
		}
	}
}
