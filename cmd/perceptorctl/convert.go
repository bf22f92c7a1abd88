package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/transfer/migrate"
)

func (c *ctl) convertCommand() *cobra.Command {
	o := migrate.Options{}
	var file string
	cmd := &cobra.Command{
		Use: "convert SCHEDULER DSN", Short: "Show the schedules of another scheduler as tasks, or write them as lines of JSON", Args: cobra.ExactArgs(2), ValidArgs: migrate.Schedulers,
		Long: "Read the tables of another scheduler from a PostgreSQL server, and show which task stands for each schedule and what differs, and\n" +
			"which schedules have no counterpart, and why. SCHEDULER is one of " + strings.Join(migrate.Schedulers, ", ") + ". Nothing is changed in either place.\n\n" +
			"With --file the tasks are written as lines of JSON. Each has an idempotency key that is derived from the name of its schedule, and how far the\n" +
			"schedule has come. Give the password by PGPASSWORD or ~/.pgpass: other users see the arguments of a process.",
		Example: "  perceptorctl convert quartz postgres://reader@db/app\n" +
			"  perceptorctl convert quartz postgres://reader@db/app --table-prefix jobs.qrtz_ --of MyScheduler --file tasks.jsonl\n" +
			"  perceptorctl convert river postgres://reader@db/app --of default",
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Scheduler, o.DSN = args[0], args[1]
			tasks, others, err := migrate.All(cmd.Context(), o)
			if err != nil {
				return &cli.Error{Code: cli.Usage, Err: err}
			}
			if file != "" {
				err = (&exportFlags{file: file}).toFile(cmd, func(out io.Writer) error { return writeItems(out, tasks) })
			} else {
				err = c.showItems(cmd, tasks, others)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%d schedules have a task, %d have none\n", len(tasks), len(others))
			for _, i := range others {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", i.Name, i.Reason)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&o.Prefix, "table-prefix", "", "what the names of the tables begin with, with their schema (default for quartz: qrtz_)")
	cmd.Flags().StringVar(&o.Of, "of", "", "only the schedules of this scheduler of Quartz, or the jobs of this queue of River")
	cmd.Flags().StringVar(&o.KeyPrefix, "key-prefix", "", keyPrefixHelp(""))
	cmd.Flags().StringVar(&file, "file", "", "write the tasks to this file, which must not exist")
	return cmd
}

// showItems shows tasks and what differs.
func (c *ctl) showItems(cmd *cobra.Command, tasks, others []*migrate.Item) error {
	if err := c.checkOutput(); err != nil {
		return err
	}
	if c.structured() {
		return c.writeItemData(cmd, tasks, others)
	}
	t := &table{head: []string{"NAME", "KIND", "TYPE", "SCHEDULE", "NEXT", "MISFIRE", "NOTES"}}
	for _, i := range tasks {
		next := i.Next.String()
		if i.Paused {
			next += " (paused)"
		}
		t.add(i.Name, i.Task.Kind, i.Task.Type.String(), scheduleOf(i.Task), next, i.Task.MisfirePolicy.String(), strings.Join(i.Notes, "; "))
	}
	return t.write(cmd.OutOrStdout())
}

// scheduleOf says in a few words when the runs of a task are.
func scheduleOf(t *perceptorv1.Task) string {
	switch {
	case t.GetInterval() != nil:
		return "every " + t.GetInterval().AsDuration().String()
	case t.GetCron() != nil:
		return t.GetCron().Expression + " " + t.GetCron().TimeZone
	}
	return "once"
}

// convertedItem is a schedule in structured output.
type convertedItem struct {
	Name   string          `json:"name"`
	Task   json.RawMessage `json:"task,omitempty"`
	Notes  []string        `json:"notes,omitempty"`
	Reason string          `json:"reason,omitempty"`
}

func (c *ctl) writeItemData(cmd *cobra.Command, tasks, others []*migrate.Item) error {
	list := []convertedItem{}
	for _, i := range tasks {
		text, err := lineOf(i)
		if err != nil {
			return err
		}
		list = append(list, convertedItem{Name: i.Name, Task: text, Notes: i.Notes})
	}
	for _, i := range others {
		list = append(list, convertedItem{Name: i.Name, Reason: i.Reason})
	}
	return c.writeData(cmd, list)
}

// writeItems writes tasks as lines of JSON.
func writeItems(out io.Writer, tasks []*migrate.Item) error {
	w := bufio.NewWriter(out)
	for _, i := range tasks {
		text, err := lineOf(i)
		if err != nil {
			return err
		}
		_, _ = w.Write(text) // Flush has the error
		_ = w.WriteByte('\n')
	}
	return w.Flush()
}

// lineOf returns the line of a task, in the form of exports.
func lineOf(i *migrate.Item) ([]byte, error) {
	t := proto.CloneOf(i.Task)
	t.Paused, t.RunCount, t.ScheduledTime = i.Paused, i.Runs, timestamppb.New(i.Next.Time())
	text, err := protojson.Marshal(t)
	if err != nil {
		return nil, err
	}
	var line bytes.Buffer // the library varies its white space
	if err := json.Compact(&line, text); err != nil {
		return nil, err
	}
	anchor := i.Anchor()
	if anchor == 0 {
		return line.Bytes(), nil
	}
	return fmt.Appendf(line.Bytes()[:line.Len()-1], `,"anchorTime":"%s"}`, anchor), nil
}
