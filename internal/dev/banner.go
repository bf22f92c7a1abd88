package dev

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// banner prints all addresses, and lines to paste into other terminals. Tests run these lines.
func (in *installation) banner(ctx context.Context) {
	kept := "kept; --ephemeral keeps nothing"
	if in.dir.ephemeral {
		kept = "removed at the end"
	}
	at := in.info()
	http := "http://" + at.HTTP
	var b strings.Builder
	line := func(name, value string) { fmt.Fprintf(&b, "  %-10s %s\n", name, value) }
	fmt.Fprintf(&b, "Perceptor %s, all in one process, ready after %s. Not for production: one copy of everything.\n\n",
		in.o.Version, time.Since(in.began).Round(10*time.Millisecond))
	line("gRPC", at.GRPC)
	line("HTTP", http)
	line("console", http+in.api.ConsoleLink(in.admin, in.token)+" (logs in once)")
	line("metrics", "http://"+at.Ops+"/metrics")
	line("Kafka", at.Kafka)
	line("Postgres", at.Postgres)
	line("data", at.DataDir+" ("+kept+")")
	if clock := in.clockLine(ctx); clock != "" {
		line("clock", clock)
	}
	line("tenant", tenantName)
	line("token", at.Token)
	line("admin", at.Admin)
	b.WriteString(in.o.toPaste(at))
	b.WriteString("\nCtrl-C stops everything.\n\n")
	_, _ = fmt.Fprint(in.o.Out, b.String()) // the installation also works without its output
}

// toPaste returns what to do next: commands for other terminals, indented.
func (o *Options) toPaste(at Info) string {
	export := fmt.Sprintf("export PERCEPTOR_ADDRESS=%s PERCEPTOR_TOKEN=%s", at.GRPC, at.Token)
	add := func(task string) string {
		return fmt.Sprintf("curl -sS http://%s/v1/tasks -H 'Authorization: Bearer %s' \\\n    -d '%s'", at.HTTP, at.Token, task)
	}
	switch {
	case o.Demo: // the handler of the demo prints the run
		return "\nAdd a task, in a second terminal; its run is printed here:\n\n  " + add(`{"kind":"`+kindOneShot+`","type":"ONE_SHOT"}`) + "\n"
	case o.VirtualClock != RealClock:
		return "\nIn a second terminal, run a test that moves the clock (examples/trial):\n\n  " +
			export + " PERCEPTOR_ADMIN_TOKEN=" + at.Admin + "\n  go test -count=1 -v ./examples/trial\n"
	}
	return "\nIn a second terminal, start a listener for tasks of kind hello (examples/hello/main.go is its code):\n\n  " +
		export + "\n  go run ./examples/hello\n\nIn a third one, add a task for it:\n\n  " +
		add(`{"kind":"hello","type":"ONE_SHOT","params":{"name":"Bob"}}`) + "\n"
}
