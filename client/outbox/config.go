package outbox

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/client"
)

// RelayConfig configures a [Relay]. Zero fields take their defaults.
type RelayConfig struct {
	// Postgres describes the connections to the database with the outbox, as pgxpool.ParseConfig
	// returns it. Required. The relay opens at most eight, and one more with Listen.
	Postgres *pgxpool.Config
	// Client calls Perceptor. Required. Its Codec is not used: rows have encoded params.
	Client *client.Client
	// Schema is that of the outbox. Default: [DefaultSchema].
	Schema string
	// Name names the relay in its table. Default: the host's name and the process id.
	Name string
	// Lease is how long the parts of a relay that hangs wait until others take them over. 1 s to 5
	// min. Default: 10 s.
	Lease time.Duration
	// Poll is how often a relay looks for new rows. 1 ms to 10 s. Default: 10 ms while there is
	// work, otherwise 25 ms; 1 s while Listen works.
	Poll time.Duration
	// Listen makes the relay listen for the commits that an outbox announces: see [Outbox.Announce]. It needs a direct
	// connection or a pooler in session mode. While the outbox announces nothing, polls are as without it. Default: false.
	Listen bool
	// BatchRows is the most rows of a batch. 1 to 1,000. Default: 1,000.
	BatchRows int
	// SendTimeout bounds a call to Perceptor with its retries. 100 ms to 5 min. Default: 20 s.
	SendTimeout time.Duration
	// Log receives what changes hands and what fails. Default (nil): nothing is logged.
	Log *slog.Logger
	// Events receive what happens.
	Events Events
}

// Events are functions that a relay calls while it works; each may be nil. They may be called
// concurrently, and must return soon.
type Events struct {
	// Moved: n operations have taken effect; lag is how long the oldest of them was in the outbox.
	Moved func(op Op, n int, lag time.Duration)
	// Refused: an operation was set aside.
	Refused func(op Op, reason string)
	// Failed: a step failed and is tried again.
	Failed func(step string, err error)
}

// Steps of a relay, for [Events].Failed.
const (
	stepLease  = "lease"
	stepClaim  = "claim"
	stepRead   = "read"
	stepSend   = "send"
	stepFinish = "finish"
	stepPoll   = "poll"
	stepListen = "listen"
)

const (
	parts       = 6
	callLimit   = 5 * time.Second // of one statement
	pollIdle    = 25 * time.Millisecond
	pollBusy    = 10 * time.Millisecond
	listenGap   = 5 * time.Millisecond // between a poll and the next one that is announced
	busyFor     = 5 * time.Second
	leaveLimit  = 2 * time.Second
	installedIs = 1 // version of the schema that this program needs
)

func (cfg RelayConfig) complete() (RelayConfig, error) {
	setDefault(&cfg.Schema, DefaultSchema)
	setDefault(&cfg.Lease, 10*time.Second)
	setDefault(&cfg.BatchRows, MaxTasks)
	setDefault(&cfg.SendTimeout, 20*time.Second)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		cfg.Name = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	return cfg, cfg.Validate()
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate returns all faults of the configuration in one error. Zero fields are valid where they
// have a default.
func (cfg RelayConfig) Validate() error {
	var faults []error
	if cfg.Postgres == nil {
		faults = append(faults, errors.New("Postgres is missing"))
	}
	if cfg.Client == nil {
		faults = append(faults, errors.New("Client is missing"))
	}
	if cfg.Schema != "" {
		if err := checkSchema(cfg.Schema); err != nil {
			faults = append(faults, err)
		}
	}
	for _, d := range []struct {
		name             string
		value, low, high time.Duration
	}{
		{"Lease", cfg.Lease, time.Second, 5 * time.Minute},
		{"Poll", cfg.Poll, time.Millisecond, 10 * time.Second},
		{"SendTimeout", cfg.SendTimeout, 100 * time.Millisecond, 5 * time.Minute},
	} {
		if d.value != 0 && (d.value < d.low || d.value > d.high) {
			faults = append(faults, fmt.Errorf("%s %s is not between %s and %s", d.name, d.value, d.low, d.high))
		}
	}
	if cfg.BatchRows < 0 || cfg.BatchRows > MaxTasks {
		faults = append(faults, fmt.Errorf("BatchRows %d is not between 1 and %d", cfg.BatchRows, MaxTasks))
	}
	if len(cfg.Name) > 200 {
		faults = append(faults, fmt.Errorf("Name has %d bytes; at most 200 are allowed", len(cfg.Name)))
	}
	if len(faults) > 0 {
		return fmt.Errorf("outbox: configuration of the relay: %w", errors.Join(faults...))
	}
	return nil
}
