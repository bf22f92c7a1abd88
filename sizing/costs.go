package sizing

import "time"

// The costs were measured on one virtual machine with 2 cores, PostgreSQL 15 and Kafka 4.1, with
// tasks of 100 bytes of params. docs/performance.md has the method, and docs/scaling.md the fit.

// Processor time of a second: fixed + perCycle · rate + perDispatcher · (dispatchers - 1) + ...
// fixed is in milliseconds per second, perCycle in microseconds. They are the fit of
// docs/scaling.md ("The model") to `loadtest cycle` at 1,000 to 24,000 cycles/s of ONE_SHOT tasks
// with an AddTask each; -33 to +18 % off for a single part, -9 to +5 % for the sum.
type partCost struct {
	fixedMs, perCycleUs, perDispatcherMs float64
}

var (
	// costPostgres: of the 20 ms/s of one more dispatcher 6 are in PostgreSQL, 3 in Kafka, 1 in
	// listeners and 9 in its own process (`loadtest fleet`, sizes up to 16 dispatchers).
	costPostgres   = partCost{fixedMs: 96, perCycleUs: 33.2, perDispatcherMs: 6}
	costKafka      = partCost{fixedMs: 150, perCycleUs: 1.1, perDispatcherMs: 3}
	costListener   = partCost{fixedMs: 61, perCycleUs: 9.9, perDispatcherMs: 1}
	costTaskd      = partCost{fixedMs: 37, perCycleUs: 9.6}
	costDispatcher = partCost{fixedMs: 100, perCycleUs: 1.8, perDispatcherMs: 9}
)

const (
	// perServerMs is what one more PostgreSQL server costs: background processes and sessions
	// (`loadtest fleet`, up to 8 servers).
	perServerMs = 5

	// addUs of the 34 µs of a cycle in PostgreSQL are its add: groups of 1,000 from one backend
	// (docs/performance.md, "The parts of a cycle"). A run of a recurring task has no add.
	addUs = 9
	// addTaskdShare is the share of taskd's time that adds take: `loadtest cycle --profile` at
	// 20,000/s has 14 % in their transactions, 9 % in those of results, and 29 % in requests,
	// which are half of each.
	addTaskdShare = 0.5

	// Of a task that waits beyond the horizon: arrival pack, compaction, promotion and delete
	// cost 5.2 µs in PostgreSQL and 3.5 in the dispatcher that has the chores (promotion 5 and 2,
	// compaction 0.2 and 1.5: docs/performance.md, "Sizing"). A task that recurs beyond the
	// horizon is demoted in addition, 10 and 4 µs.
	farPostgresUs, farDispatcherUs       = 5.2, 3.5
	demotePostgresUs, demoteDispatcherUs = 10, 4

	// perPayloadByteUs is what a byte beyond the first 100 costs in all programs together, in
	// each cycle: `loadtest fleet --rate 600 --params-bytes 10000` used 897 µs a cycle where the
	// model without payload has 809.
	perPayloadByteUs = 0.009

	// perScatteredRunUs is what a run costs more in all if its tenant has no other run within
	// the same few milliseconds, and so a record batch, a fetch, a commit and a result call of
	// its own: `loadtest tenants --tenants 200 --rate 1000`, 991 µs a cycle for 200 tenants and
	// 453 for one. tenantGroupsPerS is how many of these groups one tenant has in a second at
	// most: Kafka answers some 90 publications a second whatever the rate.
	perScatteredRunUs = 538
	tenantGroupsPerS  = 90
)

// How [perScatteredRunUs] and [perPayloadByteUs] are shared by the programs: the differences
// between 200 tenants and one in the same run were 251 µs in Kafka, 117 in PostgreSQL, 126 in
// taskd and 45 in the dispatcher. The listener was measured with the rest of the load.
const (
	scatterKafka, scatterPostgres, scatterTaskd, scatterDispatcher = 0.47, 0.22, 0.23, 0.08
)

const (
	// walPerCycle is the log of a cycle whose task is not kept, bytes: five minutes at 20,000/s,
	// add, claim and report; 951 to 992 in the runs of `loadtest fleet`. walKept is the row of
	// the finished task: `loadtest soak --rate 1000 --retain 1` wrote 1,444 bytes a cycle.
	walPerCycle, walKept = 1007, 430
	// walPerAdd of them are the insert of the task's row (2 million rows in one table: 280).
	walPerAdd = 280
	// walFar is what a task that waits in packs adds: arrival pack and compaction 32.5 + 31,
	// promotion 454 in place of the insert of 280, delete of the packs 31 (`loadtest backlog` and
	// packs measured alone).
	walFar = 270
	// toastBytes is the size from which PostgreSQL stores a payload outside the row. Below it a
	// payload is written by the insert, by the claim, and into the row of the finished task: the
	// same soak with 1,000 bytes of params wrote 2.7 times 900 bytes more. Above it the claim
	// does not write it again.
	toastBytes = 2000
)

const (
	// nearRowBytes is the size of a row of the near tier without its payload, with both index
	// entries: 293 bytes with 100 bytes of params (packs and rows measured alone, 100 bytes), 300 in docs/performance.md.
	nearRowBytes = 200
	// deadRowsPerTable is twice the number of dead rows, 4,000, at which a shard table is due for
	// vacuum; deadRowsShare is that number for large tables, a fifth of the rows
	// (migrations/sql/00001_tasks.sql). Vacuum comes up to a minute later: a soak at 8,000/s had
	// 0.9 GB after ten minutes and 1.4 GB after 25.
	deadRowsPerTable = 8000
	deadRowsShare    = 0.2
	shardTables      = 512

	// packedTaskBytes is the size of a task in a pack without its payload: 11.2 for its fields,
	// 9 % for TOAST and the index of packs. locatorBytes find it (`loadtest backlog --tasks 1e9`:
	// 22.7 + 4.7 bytes with params of 100 bytes; packs measured alone: 30 + 2.3).
	packedTaskBytes, packOverhead = 11.2, 1.09
	locatorBytes                  = 4.7
	// packedPayloadShare is what compression leaves of a payload, unless the caller knows better:
	// 0.16 of generated JSON, 0.99 of random bytes (packs and rows measured alone, 100 bytes). Real ones lie between.
	packedPayloadShare = 0.35

	// keyBytes is the size of the row of an idempotency key or a request id, with its index
	// entries.
	keyBytes = 250
	// requestsPerS is how many requests with adds one client sends at most, each of which has a
	// row for 24 hours: 99 at 20,000/s (`loadtest cycle --statements`).
	requestsPerS = 100
	keysKept     = 24 * time.Hour

	// doneRowBytes is the size of a finished task without its payload, with its index entries:
	// `loadtest soak --rate 1000 --retain 1` had 334 bytes for each with params of 100 bytes, and
	// with 1,000, of which a page holds six rows, 1,440.
	doneRowBytes = 235

	// emptyBytes is the size of 16 empty databases and their server.
	emptyBytes = 120 << 20
	// checkpoint is the distance of checkpoints that the log on disk covers twice
	// (checkpoint_timeout of the measured servers).
	checkpoint = 15 * time.Minute
	// leastWAL and mostWAL bound the log on disk: min_wal_size's neighbourhood, and max_wal_size
	// as docs/sizing.md advises.
	leastWAL, mostWAL = 1 << 30, 32 << 30
)

const (
	// recordBytes is a record of Kafka without its payload: 250 bytes with 100 of params, of
	// which 90 are the signature (docs/scaling.md).
	recordBytes = 150

	// A PostgreSQL server is given this much log at most, if there may be more servers: two fifths
	// of the 100 MB/s that fill a link of 1 Gbit/s to its standby.
	walPerServer = 40e6
	// rowsPerServer is how many bytes of rows of the near tier one server is given at most,
	// because they should stay in memory.
	rowsPerServer = 24 << 30
	databases     = 16

	// runsPerProcess is the rate for which one more taskd or dispatcher is planned, beside one
	// that may be away: 24,000/s of one taskd are measured, at 10 µs of a core each; a dispatcher
	// has 50,000 records in memory (dispatcher.max_records).
	runsPerProcess = 50_000
	// replicasPerBroker and bytesPerBroker bound what one broker is given: replicas of
	// partitions, as Kafka's documentation advises, and bytes a second in.
	replicasPerBroker = 4000
	bytesPerBroker    = 50 << 20
	leastBrokers      = 3
	partitions        = 8 // kafka.partitions
	topicsOfTenant    = 2 // runs and dead letters
)

const (
	// sessionsPerPair is how many connections a process has open to a database: 572 for 17
	// processes, 600 for 17 with 8 servers (docs/scaling.md). connectionsPerPair is the limit,
	// postgres.max_connections.
	sessionsPerPair    = 2.2
	connectionsPerPair = 4
	// spareConnections are those for the operator, backups and standbys, and the three that
	// PostgreSQL keeps for superusers.
	spareConnections = 20

	// Memory (docs/scaling.md, "Memory"): budgets, which follow from the bounds of the programs.
	sessionBytes     = 4 << 20
	postgresBytes    = 1 << 30
	dispatcherBytes  = 512 << 20
	taskdBytes       = 1 << 30
	listenerBytes    = 256 << 20
	listenerPending  = 32_768 // MaxPending
	brokerBytes      = 1 << 30
	zookeeperBytes   = 256 << 20
	tenantDispatcher = 17 << 10 // `loadtest tenants --tenants 10000 --waiting 100`, less that of 1,000
	tenantPostgres   = 25 << 10
	partitionBroker  = 35 << 10

	// headroom is how much more of processors and disk to have than is used: half-loaded
	// machines and disks that are three quarters full.
	processorHeadroom = 2
	diskHeadroom      = 4.0 / 3
)
