package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/task"
)

// recorded makes a command that works without the API write to the audit log what it has
// done. Calls with wrong usage, which do nothing, are not recorded.
func recorded(f func(cmd *cobra.Command, conf *config.Config) error) func(cmd *cobra.Command, conf *config.Config) error {
	return recordedIf(func() bool { return true }, f)
}

// recordedIf is [recorded] for a command that changes something only if changes says so.
func recordedIf(changes func() bool, f func(cmd *cobra.Command, conf *config.Config) error) func(cmd *cobra.Command, conf *config.Config) error {
	return func(cmd *cobra.Command, conf *config.Config) error {
		err := f(cmd, conf)
		if changes() {
			record(cmd, conf, task.AuditEvent{Changes: givenFlags(cmd)}, err)
		}
		return err
	}
}

// record writes the event of a command that has ended with err to the audit log. If that
// is not possible it says so: the command has done its work.
func record(cmd *cobra.Command, conf *config.Config, e task.AuditEvent, err error) {
	e.Action, e.Result = cmd.CommandPath(), "OK"
	if e.Object == "" {
		e.Object = strings.Join(cmd.Flags().Args(), " ")
	}
	if err != nil {
		var known *cli.Error
		if errors.As(err, &known) && known.Code == cli.Usage {
			return
		}
		e.Result = "FAILED"
	}
	if len(conf.Postgres.Servers) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "not recorded in the audit log: postgres.servers is not configured")
		return
	}
	if err := app.RecordCommand(cmd.Context(), conf, e); err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "not recorded in the audit log: %v\n", err)
	}
}

// givenFlags returns the flags of a command line that are not those of all commands or of the
// configuration.
func givenFlags(cmd *cobra.Command) (given []task.AuditChange) {
	shared := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.Register(shared)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "config" && shared.Lookup(f.Name) == nil && cmd.InheritedFlags().Lookup(f.Name) == nil {
			given = append(given, task.AuditChange{Field: "--" + f.Name, After: f.Value.String()})
		}
	})
	return given
}

// jsonChanges compares two JSON objects, field by field.
func jsonChanges(before, after []byte) (changes []task.AuditChange) {
	var was, is map[string]json.RawMessage
	if json.Unmarshal(before, &was) != nil || json.Unmarshal(after, &is) != nil {
		return nil
	}
	all := maps.Clone(was)
	maps.Copy(all, is)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if b, a := string(was[name]), string(is[name]); a != b {
			changes = append(changes, task.AuditChange{Field: name, Before: b, After: a})
		}
	}
	return changes
}
