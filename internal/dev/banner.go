package dev

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// banner prints all addresses and an example of a call.
func (in *installation) banner(ctx context.Context) {
	kept := "kept; --ephemeral keeps nothing"
	if in.dir.ephemeral {
		kept = "removed at the end"
	}
	kind := "hello"
	if in.o.Demo {
		kind = kindOneShot // the demo's handler prints the callback
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
	fmt.Fprintf(&b, "\nAdd a task, in another shell:\n\n  curl -sS %s/v1/tasks -H 'Authorization: Bearer %s' \\\n"+
		"    -d '{\"kind\":\"%s\",\"type\":\"ONE_SHOT\"}'\n\nCtrl-C stops everything.\n\n", http, at.Token, kind)
	_, _ = fmt.Fprint(in.o.Out, b.String()) // the installation also works without its output
}
