package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/duration"
	"github.com/perceptor/perceptor/sizing"
)

// sizeCommand computes without asking anybody.
func (c *ctl) sizeCommand() *cobra.Command {
	d := sizing.Demand{
		Tenants: 1, PayloadBytes: 100, PackedShare: sizing.DefaultPackedShare,
		KafkaReplicas: sizing.DefaultKafkaReplicas,
	}
	var backlog float64
	cmd := &cobra.Command{
		Use: "size", Short: "Compute the machines that a load needs", Args: cobra.NoArgs,
		Long: "Compute what an installation needs for a load: processors, memory, disk, connections, write-ahead log, traffic and disk of\n" +
			"Kafka, and how many processes. The numbers follow from measured costs; no server is asked. Cores to have are twice the cores\n" +
			"that are used, disks a third larger than the data. Handlers, standbys and backups come in addition. docs/sizing.md compares with runs.",
		Example: "  perceptorctl size --rate 1000 --backlog 1e6 --retention 1h\n" +
			"  perceptorctl size --rate 20000 --backlog 500e6 --retention 1d --tenants 200 --payload 2000 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.checkOutput(); err != nil {
				return err
			}
			if backlog != math.Trunc(backlog) || math.Abs(backlog) > 1e18 {
				return cli.Usagef("--backlog: %v is not a number of tasks", backlog)
			}
			d.Backlog = int64(backlog)
			if err := sizeFaults(cmd, d); err != nil {
				return err
			}
			p := d.Plan()
			if c.structured() {
				return c.writeData(cmd, sizeData(p))
			}
			return showSize(cmd, p)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Float64Var(&d.Rate, "rate", 0, "runs per second in the busiest minutes")
	f.Float64Var(&backlog, "backlog", 0, "tasks that wait at a time, such as 1e6")
	duration.Var(f, &d.Retention, "retention", time.Hour, "how long finished tasks are kept")
	f.Float64Var(&d.Recurring, "recurring", 0, "share of the runs that belong to recurring tasks, 0 to 1: they need no add")
	f.Float64Var(&d.Keyed, "keyed", 0, "share of the added tasks that have an idempotency key, 0 to 1")
	f.IntVar(&d.PayloadBytes, "payload", d.PayloadBytes, "bytes of the params and the payload of a task")
	f.Float64Var(&d.PackedShare, "packed-share", d.PackedShare, "what compression leaves of them, above 0 to 1: JSON 0.2 to 0.5, what is compressed already 1")
	f.IntVar(&d.Tenants, "tenants", d.Tenants, "tenants with runs")
	f.IntVar(&d.Listeners, "listeners", 0, "listener processes of all services (default: one for each tenant)")
	f.IntVar(&d.Servers, "servers", 0, "PostgreSQL servers, 1 to 16 (default: as many as the load needs)")
	duration.Var(f, &d.Horizon, "horizon", sizing.DefaultHorizon, "far.horizon: how long before it is due a task becomes a row")
	duration.Var(f, &d.KafkaRetention, "kafka-retention", sizing.DefaultKafkaRetention, "kafka.retention: how long topics keep records")
	f.IntVar(&d.KafkaReplicas, "kafka-replicas", d.KafkaReplicas, "copies of each partition")
	return cmd
}

// sizeFaults names each flag whose value makes no sense. A value that is given and is 0 is no
// default.
func sizeFaults(cmd *cobra.Command, d sizing.Demand) error {
	var faults []error
	for _, fault := range d.Faults() {
		faults = append(faults, fmt.Errorf("--%s: %s", fault.Field, fault.Message))
	}
	for _, flag := range []string{"packed-share", "listeners", "servers", "horizon", "kafka-retention", "kafka-replicas"} {
		if text := cmd.Flag(flag).Value.String(); cmd.Flags().Changed(flag) && strings.Trim(text, "0s.") == "" {
			faults = append(faults, fmt.Errorf("--%s: %s is not above 0", flag, text))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return &cli.Error{Code: cli.Usage, Err: errors.Join(faults...)}
}

// sizeReport is the JSON of a plan: with the durations of the demand in seconds.
type sizeReport struct {
	sizing.Plan
	RetentionS      float64 `json:"retentionSeconds"`
	HorizonS        float64 `json:"horizonSeconds"`
	KafkaRetentionS float64 `json:"kafkaRetentionSeconds"`
}

func sizeData(p sizing.Plan) sizeReport {
	return sizeReport{p, p.Demand.Retention.Seconds(), p.Demand.Horizon.Seconds(), p.Demand.KafkaRetention.Seconds()}
}

func showSize(cmd *cobra.Command, p sizing.Plan) error {
	out := cmd.OutOrStdout()
	programs := &table{head: []string{"PROGRAM", "PROCESSES", "CORES USED", "CORES", "MEMORY", "DISK"}}
	for _, g := range p.Programs {
		disk := "-"
		if g.DiskBytes > 0 {
			disk = bytesCell(g.DiskBytes)
		}
		programs.add(g.Name, strconv.Itoa(g.Count), coresCell(g.CoresUsed), coresCell(g.Cores), bytesCell(g.MemoryBytes), disk)
	}
	totals := &table{head: []string{"IN ALL", ""}}
	totals.add("cores used, cores to have", coresCell(p.CoresUsed)+", "+coresCell(p.Cores))
	for _, s := range p.Disk {
		totals.add("disk: "+s.What, bytesCell(s.Bytes))
	}
	totals.add("disk of PostgreSQL without reserve", bytesCell(p.DiskBytes))
	totals.add("write-ahead log", bytesCell(p.WALBytesPerS)+"/s")
	totals.add("into and out of Kafka, one copy", bytesCell(p.KafkaInBytesPerS)+"/s")
	totals.add("disk of Kafka, all copies", bytesCell(p.KafkaDiskBytes))
	totals.add("partitions of Kafka, all copies", strconv.FormatInt(p.KafkaReplicas, 10))
	totals.add("sessions of each PostgreSQL server", strconv.Itoa(p.SessionsPerServer))
	totals.add("max_connections of each, if none are shared", strconv.Itoa(p.ConnectionsPerServer))
	totals.add("mean wait of a task", seconds(p.MeanWaitS).String())
	fmt.Fprintln(out, "For each process:")
	err := programs.write(out)
	fmt.Fprintln(out)
	err = errors.Join(err, totals.write(out))
	for _, w := range p.Warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
	}
	return err
}

// seconds returns a duration that is at most the longest one.
func seconds(s float64) time.Duration {
	return time.Duration(min(s, (200*365*24*time.Hour).Seconds())) * time.Second
}

func coresCell(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }

// bytesCell writes a size with three digits.
func bytesCell(n float64) string {
	units := []string{"B", "kB", "MB", "GB", "TB", "PB"}
	i := 0
	for ; n >= 999.5 && i < len(units)-1; i++ {
		n /= 1000
	}
	return strconv.FormatFloat(n, 'g', 3, 64) + " " + units[i]
}
