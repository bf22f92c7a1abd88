package task

import "time"

// Limits of every task, in every installation.
const (
	MaxKindBytes      = 100
	MaxParams         = 64
	MaxParamKeyBytes  = 100
	MaxParamsBytes    = 256 << 10 // the highest limit a tenant may have
	MaxErrorBytes     = 1024
	MaxCountLimit     = int64(1e12)
	MaxInterval       = 3650 * 24 * time.Hour
	MaxAckTimeout     = 24 * time.Hour
	MaxGiveUpAfter    = 30 * 24 * time.Hour
	MaxRetention      = 90 * 24 * time.Hour
	MaxBackoff        = 24 * time.Hour
	MaxAttempts       = 1000
	MaxTasksPerAdd    = 1000
	MaxEntriesPerCall = 5000
	MaxRequestIDBytes = 64
	MaxPageSize       = 1000
	// MaxSealedBytes bounds the result of [Seal].
	MaxSealedBytes = 4096
	MaxTags        = 16
	MaxTagBytes    = 64
	MaxCatchUp     = 100_000
	MaxKeyBytes    = 128 // of an idempotency_key
	MaxSpread      = 24 * time.Hour
	MaxGrace       = 30 * 24 * time.Hour
	// UnreadableDelay is the time by which a task is deferred if this program cannot read
	// its stored terms, such as its cron expression.
	UnreadableDelay = time.Hour
	// CalendarDelay is the time by which a task is deferred if one of its calendars is not
	// known, and CalendarReadDelay the one while it is being read.
	CalendarDelay     = 10 * time.Second
	CalendarReadDelay = 200 * time.Millisecond
	// A tenant has at most MaxCalendars day calendars of at most MaxCalendarRanges ranges
	// each, and a task names at most MaxTaskCalendars in each of its two lists.
	MaxCalendars         = 100
	MaxCalendarRanges    = 10_000
	MaxTaskCalendars     = 4
	MaxCalendarNameBytes = 64
	// MaxSilence is the longest delay between two deliveries of a silent run, unless
	// ack_timeout is longer.
	MaxSilence = time.Hour
	// TriesAfterWord is the least number of deliveries after the last word about a run
	// before it is given up.
	TriesAfterWord = 2
	// HandBackDelay is the delay before a run that was handed back once is delivered
	// again. It doubles each time, up to MaxSilence.
	HandBackDelay = 5 * time.Second
	// MinAfter and MaxAfter bound the delay that a result may ask for, either of a
	// snooze or in place of a backoff.
	MinAfter = time.Millisecond
	MaxAfter = 24 * time.Hour
	// MaxSnoozes is the most snoozes of a run that are counted. Further ones count as
	// silence.
	MaxSnoozes = 1<<20 - 1
	// OpenBits is the number of open runs that a NON_BLOCKING task keeps in its own row.
	OpenBits = 64
	// MaxBitGap is the longest time until the next instant of a NON_BLOCKING task for which a
	// run without a row may wait: if it is silent, that claim delivers it again.
	MaxBitGap = 24 * time.Hour
)

// Defaults of the fields that a request may leave out.
const (
	DefaultAckTimeout      = time.Minute
	DefaultGiveUpAfter     = 24 * time.Hour
	DefaultMaxAttempts     = 5
	DefaultInitialBackoff  = time.Second
	DefaultMaxBackoff      = time.Hour
	DefaultMultiplier      = 2.0
	DefaultJitter          = 0.1
	DefaultRetention       = time.Hour
	DefaultMaxParamsBytes  = 16 << 10
	DefaultPageSize        = 100
	DefaultGrace           = time.Minute
	DefaultCatchUp         = 1000
	DefaultCatchUpInterval = 100 * time.Millisecond
	DefaultDeadRetention   = 30 * 24 * time.Hour
)

// Limits are the bounds that an installation or a tenant may choose.
type Limits struct {
	// MinInterval is the shortest interval. Default: 1 s; at least 10 ms.
	MinInterval time.Duration
	// MinAckTimeout is the shortest ack_timeout. Default: 1 s; at least 10 ms.
	MinAckTimeout time.Duration
	// RecordRetention is how long Kafka keeps a record, or 0 if that is unknown. A silent run is
	// published again after its ack_timeout, which must come before its record may be deleted.
	RecordRetention time.Duration
	// ParamsBytes is the tenant's limit on all keys and values and the payload together.
	ParamsBytes int
}

// DefaultLimits returns the limits of an installation that sets none.
func DefaultLimits() Limits {
	return Limits{MinInterval: time.Second, MinAckTimeout: time.Second, ParamsBytes: DefaultMaxParamsBytes}
}
