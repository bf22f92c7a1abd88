package sizing

import (
	"fmt"
	"math"
	"time"
)

// A Plan is what an installation needs for a [Demand].
type Plan struct {
	Demand Demand `json:"demand"`
	// MeanWaitS is how long a task waits on average, by Little's law.
	MeanWaitS float64 `json:"meanWaitSeconds"`
	// FarTier says whether waiting tasks are kept in packs.
	FarTier bool `json:"farTier"`

	// Programs are the processes with what each of them needs.
	Programs []Program `json:"programs"`
	// CoresUsed is the processor time of all programs at the rate, in cores of the measured
	// machine; handlers are not counted.
	CoresUsed float64 `json:"coresUsed"`
	// Cores is what to have: machines that are half loaded.
	Cores float64 `json:"cores"`

	// Disk is what the data takes on all PostgreSQL servers together, without headroom.
	Disk []Share `json:"disk"`
	// DiskBytes is the sum.
	DiskBytes float64 `json:"diskBytes"`
	// WALBytesPerS is the write-ahead log of all servers.
	WALBytesPerS float64 `json:"walBytesPerSecond"`

	// KafkaInBytesPerS is what producers send to Kafka, of one copy; consumers read as much.
	KafkaInBytesPerS float64 `json:"kafkaInBytesPerSecond"`
	// KafkaDiskBytes is the disk of all brokers, with all copies.
	KafkaDiskBytes float64 `json:"kafkaDiskBytes"`
	// KafkaReplicas is the number of copies of partitions on all brokers.
	KafkaReplicas int64 `json:"kafkaPartitionReplicas"`

	// SessionsPerServer is how many connections one PostgreSQL server has, and
	// ConnectionsPerServer how many it must allow: max_connections.
	SessionsPerServer    int `json:"sessionsPerServer"`
	ConnectionsPerServer int `json:"maxConnectionsPerServer"`

	// Warnings are what the plan cannot promise.
	Warnings []string `json:"warnings"`
}

// A Program is a kind of process.
type Program struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
	// CoresUsed and Cores are those of one process: used at the rate, and to have.
	CoresUsed float64 `json:"coresUsed"`
	Cores     float64 `json:"cores"`
	// MemoryBytes and DiskBytes are what to give one process.
	MemoryBytes float64 `json:"memoryBytes"`
	DiskBytes   float64 `json:"diskBytes"`
}

// A Share is a part of the disk.
type Share struct {
	What  string  `json:"what"`
	Bytes float64 `json:"bytes"`
}

// The names of the programs.
const (
	Postgres   = "PostgreSQL"
	Kafka      = "Kafka"
	Taskd      = "taskd"
	Dispatcher = "dispatcher"
	Listener   = "listener"
)

// sizer holds what the parts of a plan share.
type sizer struct {
	d       Demand
	servers int
	counts  map[string]int
	p       *Plan
}

// Plan returns what an installation needs for d, which must have no [Demand.Faults].
func (d Demand) Plan() Plan {
	s := &sizer{d: d.complete(), p: &Plan{Warnings: []string{}}}
	d = s.d
	s.p.Demand, s.p.FarTier = d, d.far()
	if d.Rate > 0 {
		s.p.MeanWaitS = float64(d.Backlog) / d.Rate
	}
	s.p.WALBytesPerS = d.walPerS()
	s.kafka()
	s.disk()
	s.chooseServers()
	s.p.Demand.Servers = s.servers
	more := int(math.Ceil(d.Rate / runsPerProcess))
	s.counts = map[string]int{
		Postgres: s.servers, Kafka: s.brokers(), Taskd: 1 + max(1, more), Dispatcher: 1 + max(1, more), Listener: d.Listeners,
	}
	s.connections()
	s.programs()
	s.warn()
	return *s.p
}

// extra is how many bytes of the payload are more than the measured tasks had.
func (d Demand) extra() float64 { return float64(d.PayloadBytes) - 100 }

// walPerS returns the write-ahead log, in bytes a second.
func (d Demand) walPerS() float64 {
	more := d.extra()
	claim := more
	if d.PayloadBytes >= toastBytes {
		claim = 0
	}
	wal := d.Rate*(walPerCycle+claim) - d.Rate*d.Recurring*walPerAdd + d.adds()*more
	if d.Retention > 0 {
		wal += d.adds() * (walKept + more)
	}
	if d.far() {
		wal += d.Rate * (walFar + more) // promoted, and a recurring one demoted before
	}
	return max(wal, 0)
}

// rowBytes is the size of a row of the near tier.
func (d Demand) rowBytes() float64 { return nearRowBytes + float64(d.PayloadBytes) }

// packedBytes is the size of a task in packs.
func (d Demand) packedBytes() float64 {
	return (packedTaskBytes+d.PackedShare*float64(d.PayloadBytes))*packOverhead + locatorBytes
}

// keys returns the number of rows that remember idempotency keys and request ids.
func (d Demand) keys() float64 {
	kept := max(d.Retention, keysKept).Seconds()
	keyed := d.Keyed * (float64(d.Backlog)*(1-d.Recurring) + d.adds()*kept)
	clients := float64(max(1, d.Tenants))
	requests := min(d.adds()*(1-d.Keyed), clients*requestsPerS)
	return keyed + requests*keysKept.Seconds()
}

func (s *sizer) disk() {
	d := s.d
	near := d.near()
	dead := 0.0
	if d.Rate > 0 {
		// Each run leaves two dead rows, so a table has as many as it may have within hours.
		dead = max(deadRowsPerTable*shardTables, deadRowsShare*near)
	}
	parts := []Share{
		{"waiting tasks in packs", (float64(d.Backlog) - near) * d.packedBytes()},
		{"tasks due within the horizon", near * d.rowBytes()},
		{"dead rows before vacuum", dead * d.rowBytes()},
		{"finished tasks", d.adds() * d.Retention.Seconds() * (doneRowBytes + float64(d.PayloadBytes))},
		{"keys and request ids", d.keys() * keyBytes},
		{"write-ahead log", min(max(2*checkpoint.Seconds()*s.p.WALBytesPerS, leastWAL), mostWAL)},
		{"empty databases", emptyBytes},
	}
	s.p.Disk = parts
	for _, part := range parts {
		s.p.DiskBytes += part.Bytes
	}
}

// chooseServers follows the log and the rows that should stay in memory, unless the number is given.
// Databases are distributed evenly, so it is a power of two.
func (s *sizer) chooseServers() {
	s.servers = s.d.Servers
	if s.servers > 0 {
		return
	}
	need := max(s.p.WALBytesPerS/walPerServer, s.d.near()*s.d.rowBytes()/rowsPerServer)
	for s.servers = 1; s.servers < databases && float64(s.servers) < need; s.servers *= 2 {
	}
}

func (s *sizer) kafka() {
	d := s.d
	s.p.KafkaInBytesPerS = d.Rate * (recordBytes + float64(d.PayloadBytes))
	s.p.KafkaDiskBytes = s.p.KafkaInBytesPerS * d.KafkaRetention.Seconds() * float64(d.KafkaReplicas)
	s.p.KafkaReplicas = int64(d.Tenants) * topicsOfTenant * partitions * int64(d.KafkaReplicas)
}

func (s *sizer) brokers() int {
	in := s.p.KafkaInBytesPerS * float64(s.d.KafkaReplicas)
	return max(leastBrokers, s.d.KafkaReplicas, int(math.Ceil(in/bytesPerBroker)), int(math.Ceil(float64(s.p.KafkaReplicas)/replicasPerBroker)))
}

// databasesOn is how many databases the fullest server has.
func (s *sizer) databasesOn() int { return int(math.Ceil(databases / float64(s.servers))) }

func (s *sizer) connections() {
	processes := s.counts[Taskd] + s.counts[Dispatcher]
	pairs := processes * s.databasesOn()
	s.p.SessionsPerServer = int(math.Ceil(sessionsPerPair * float64(pairs)))
	// A dispatcher has one more to the server of database 0 if the assignment is there.
	s.p.ConnectionsPerServer = connectionsPerPair*pairs + s.counts[Dispatcher] + spareConnections
}

// used returns the cores that all processes of a program use.
func (s *sizer) used(c partCost, scatter float64, morePerRunUs float64) float64 {
	d := s.d
	ms := c.fixedMs + c.perDispatcherMs*float64(s.counts[Dispatcher]-1)
	us := d.Rate * (c.perCycleUs + morePerRunUs + max(0, d.extra())*perPayloadByteUs*scatter)
	us += min(d.Rate, float64(d.Tenants-1)*tenantGroupsPerS) * perScatteredRunUs * scatter
	return ms/1e3 + us/1e6
}

func (s *sizer) programs() {
	d := s.d
	farPG, farDispatcher := 0.0, 0.0
	if d.far() {
		farPG, farDispatcher = farPostgresUs+d.Recurring*demotePostgresUs, farDispatcherUs+d.Recurring*demoteDispatcherUs
	}
	used := map[string]float64{
		Postgres:   s.used(costPostgres, scatterPostgres, farPG-addUs*d.Recurring) + perServerMs/1e3*float64(s.servers-1),
		Kafka:      s.used(costKafka, scatterKafka, 0),
		Taskd:      s.used(costTaskd, scatterTaskd, -costTaskd.perCycleUs*addTaskdShare*d.Recurring),
		Dispatcher: s.used(costDispatcher, scatterDispatcher, farDispatcher),
		// Each listener polls Kafka by itself; the fixed part is that of one.
		Listener: s.used(costListener, 0, 0),
	}
	memory := s.memory()
	disk := map[string]float64{
		Postgres: s.p.DiskBytes / float64(s.servers) * diskHeadroom,
		Kafka:    s.p.KafkaDiskBytes / float64(s.counts[Kafka]) * diskHeadroom,
	}
	for _, name := range []string{Postgres, Kafka, Taskd, Dispatcher, Listener} {
		n := float64(s.counts[name])
		s.p.CoresUsed += used[name]
		s.p.Programs = append(s.p.Programs, Program{
			Name: name, Count: s.counts[name], CoresUsed: used[name] / n, Cores: processorHeadroom * used[name] / n,
			MemoryBytes: memory[name], DiskBytes: disk[name],
		})
	}
	s.p.Cores = processorHeadroom * s.p.CoresUsed
}

// memory returns what to give one process of each program.
func (s *sizer) memory() map[string]float64 {
	d, tenants := s.d, float64(s.d.Tenants)
	return map[string]float64{
		Postgres: postgresBytes + sessionBytes*float64(s.p.SessionsPerServer) + tenantPostgres*tenants +
			d.near()*d.rowBytes()/float64(s.servers),
		Kafka:      brokerBytes + partitionBroker*float64(s.p.KafkaReplicas)/float64(s.counts[Kafka]),
		Taskd:      taskdBytes,
		Dispatcher: dispatcherBytes + tenantDispatcher*tenants,
		Listener:   listenerBytes + listenerPending*max(0, d.extra()),
	}
}

// warn names what lies beyond what was measured.
func (s *sizer) warn() {
	d, p := s.d, s.p
	add := func(format string, args ...any) { p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...)) }
	if d.Rate > 24_000 {
		add("%s runs a second are extrapolated: 24,000 were measured, on one machine", plain(d.Rate))
	}
	if wal := p.WALBytesPerS / float64(s.servers); wal > 2*walPerServer {
		add("each PostgreSQL server writes %.0f MB of log a second: a link of 1 Gbit/s to a standby is full at 100", wal/1e6)
	}
	if rows := d.near() * d.rowBytes() / float64(s.servers); rows > rowsPerServer {
		add("each PostgreSQL server has %.0f GB of rows due within the horizon, which should stay in memory: use more servers or a shorter horizon", rows/1e9)
	}
	if d.Backlog > 0 && d.Rate > 0 && p.MeanWaitS > (10*365*24*time.Hour).Seconds() {
		add("a backlog of %d tasks lasts %.0f years at this rate", d.Backlog, p.MeanWaitS/(365*24*3600))
	}
	if d.Tenants > 1 && s.counts[Kafka] > leastBrokers && float64(p.KafkaReplicas)/replicasPerBroker > leastBrokers {
		add("%d copies of partitions need %d brokers: kafka.partitions below %d for small tenants needs fewer", p.KafkaReplicas, s.counts[Kafka], partitions)
	}
}
