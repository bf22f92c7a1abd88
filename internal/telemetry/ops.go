package telemetry

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/perceptor/perceptor/internal/share"
)

const (
	checkTimeout = 2 * time.Second
	// remember is how long an answer of /readyz is reused, so that frequent calls cost
	// little.
	remember = 500 * time.Millisecond
	opsGrace = time.Second
	// takeWithin is how long an answer may wait for its caller. Otherwise a caller that takes none would keep
	// its place, and anybody could take all that its address may have.
	takeWithin = 30 * time.Second
	// profilesPath begins the paths of profiles.
	profilesPath = "/debug/pprof/"
	// opsConnections is the most connections at once. One address has half of them, or less while
	// others have many: anybody may connect, and must not use up the descriptors of the process.
	opsConnections = 256
)

// Check is one check of a program's readiness. Probe returns nil if the part works,
// a [Degraded] error if the program can work without it, and any other error if it
// cannot. Probe must return when its context ends.
type Check struct {
	Name  string
	Probe func(ctx context.Context) error
}

type degraded struct{ error }

func (d degraded) Unwrap() error { return d.error }

// Degraded marks an error of a part without which the program can work. It returns
// nil for nil.
func Degraded(err error) error {
	if err == nil {
		return nil
	}
	return degraded{err}
}

// OpsOptions configure an [Ops].
type OpsOptions struct {
	// Token, if set, is what a caller presents to be an operator. Without it every caller is
	// one; on loopback, every caller that names the server as one on loopback.
	Token string
	// Profiles says that profiles are served.
	Profiles bool
}

// Ops is the HTTP server for operators. Anyone may ask whether the program is alive and
// ready. Only operators see why it is not ready, the metrics, which name tenants, and the
// profiles, which show memory.
type Ops struct {
	listener net.Listener
	http     *http.Server
	checks   []Check
	// token is the digest of the operators' token; nil without one.
	token *[sha256.Size]byte

	mu       sync.Mutex
	asked    time.Time
	code     int
	answer   string
	stopping bool
}

// NewOps returns a server on a listener, which Run closes.
func NewOps(l net.Listener, metrics prometheus.Gatherer, checks []Check, options OpsOptions, log *slog.Logger) *Ops {
	o := &Ops{listener: l, checks: checks}
	if options.Token != "" {
		digest := sha256.Sum256([]byte(options.Token))
		o.token = &digest
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, index(options.Profiles)) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, "alive\n") })
	mux.HandleFunc("GET /readyz", o.readyz)
	mux.Handle("GET /metrics", o.operators(promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), MaxRequestsInFlight: 4, Timeout: 10 * time.Second,
	})))
	if options.Profiles {
		mux.Handle(profilesPath, o.operators(profiles()))
	}
	o.http = &http.Server{
		Handler: taken(mux), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ConnState: newOpsPlaces().follow,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return o
}

// taken bounds the time in which callers take their answers. A profile may be one of any duration, so
// http.Server.WriteTimeout is not used, and operators decide how long they take those.
func taken(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		until := time.Now().Add(takeWithin)
		if strings.HasPrefix(r.URL.Path, profilesPath) {
			until = time.Time{}
		}
		_ = http.NewResponseController(w).SetWriteDeadline(until) // all connections have deadlines
		next.ServeHTTP(w, r)
	})
}

// opsPlaces has the places of connections, by network. It is safe for concurrent use.
type opsPlaces struct {
	pool *share.Pool[netip.Addr]
	mu   sync.Mutex
	held map[net.Conn]netip.Addr
}

func newOpsPlaces() *opsPlaces {
	return &opsPlaces{pool: share.NewPool[netip.Addr](opsConnections, 0), held: map[net.Conn]netip.Addr{}}
}

// follow closes a new connection for which there is no place, and gives back those of connections that end.
func (p *opsPlaces) follow(c net.Conn, state http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch state {
	case http.StateNew:
		from := callerAt(c.RemoteAddr())
		if !p.pool.Take(from, 1) {
			_ = c.Close() // nothing was sent on it
			return
		}
		p.held[c] = from
	case http.StateClosed, http.StateHijacked:
		if from, ok := p.held[c]; ok {
			delete(p.held, c)
			p.pool.Give(from, 1)
		}
	}
}

// callerAt returns the party of a connection. Those without an IP address share one.
func callerAt(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return share.Network(tcp.AddrPort().Addr(), share.CallerBits)
}

// index says what is here.
func index(profiles bool) string {
	text := "Perceptor, for operators\n\n/healthz  is the process alive?\n/readyz   is it ready, and what does not work?\n/metrics  for Prometheus\n"
	if profiles {
		text += profilesPath + "  profiles\n"
	}
	return text
}

func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(profilesPath, pprof.Index)
	mux.HandleFunc(profilesPath+"cmdline", pprof.Cmdline)
	mux.HandleFunc(profilesPath+"profile", pprof.Profile)
	mux.HandleFunc(profilesPath+"symbol", pprof.Symbol)
	mux.HandleFunc(profilesPath+"trace", pprof.Trace)
	return mux
}

// operators refuses callers that are not operators.
func (o *Ops) operators(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case o.isOperator(r):
			next.ServeHTTP(w, r)
		case o.token == nil:
			reply(w, http.StatusMisdirectedRequest, "ask by the name localhost or an address of loopback, or set ops.token\n")
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			reply(w, http.StatusUnauthorized, "the token of ops.token is needed\n")
		}
	})
}

// isOperator reports whether the caller has the token. If there is none, programs on this
// machine are operators. The pages of other sites are not, although a browser on this machine
// may ask for them: a site can make its name stand for loopback, but not change the name.
func (o *Ops) isOperator(r *http.Request) bool {
	if o.token == nil {
		return !onLoopback(o.listener.Addr().String()) || onLoopback(r.Host)
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	digest := sha256.Sum256([]byte(token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(digest[:], o.token[:]) == 1
}

// onLoopback reports whether a host, with or without a port, is this machine's loopback.
func onLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && ip.Unmap().IsLoopback()
}

// Run serves until ctx is cancelled. Then it returns nil.
func (o *Ops) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- o.http.Serve(o.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve operators on %s: %w", o.listener.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), opsGrace)
	defer cancel()
	if o.http.Shutdown(grace) != nil {
		// A caller is still reading. A stop does not wait for it.
		_ = o.http.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve operators on %s: %w", o.listener.Addr(), err)
	}
	return nil
}

// Stopping makes /readyz answer that the program is stopping.
func (o *Ops) Stopping() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopping = true
}

func (o *Ops) readyz(w http.ResponseWriter, r *http.Request) {
	code, answer := o.ready(r.Context())
	if !o.isOperator(r) { // the reasons have addresses
		answer, _, _ = strings.Cut(answer, "\n")
		answer += "\n"
	}
	reply(w, code, answer)
}

// ready returns the answer of /readyz. Callers at the same time share one.
func (o *Ops) ready(ctx context.Context) (int, string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopping {
		return http.StatusServiceUnavailable, "not ready\nstopping\n"
	}
	if time.Since(o.asked) > remember {
		o.code, o.answer = Probe(context.WithoutCancel(ctx), o.checks)
		o.asked = time.Now()
	}
	return o.code, o.answer
}

// Probe runs all checks concurrently and returns the HTTP status and the body of
// /readyz: "ready", "degraded" or "not ready", then a line for each part that does
// not work.
func Probe(ctx context.Context, checks []Check) (code int, body string) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	errs := make([]error, len(checks))
	var asking sync.WaitGroup
	for i, c := range checks {
		asking.Go(func() { errs[i] = c.Probe(ctx) })
	}
	asking.Wait()
	code, word := http.StatusOK, "ready"
	var lines strings.Builder
	for i, err := range errs {
		if err == nil {
			continue
		}
		if errors.As(err, new(degraded)) {
			if word == "ready" {
				word = "degraded"
			}
		} else {
			code, word = http.StatusServiceUnavailable, "not ready"
		}
		fmt.Fprintf(&lines, "%s: %s\n", checks[i].Name, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return code, word + "\n" + lines.String()
}

func reply(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(body)) // the caller may have gone
}
