package main

import (
	"strings"
	"testing"
)

func TestAListRefusesALimitBelowOne(t *testing.T) {
	s := &tasks{}
	s.serve(t)
	for _, list := range []string{"task list", "task list -o json", "dead list", "import list", "bulk list", "audit", "token list", "tenant list"} {
		for _, limit := range []string{"0", "-3"} {
			code, out, said := runCtl(t, append(strings.Fields(list), "--limit", limit)...)
			if code != 2 || out != "" || !strings.Contains(said, "--limit: "+limit+" is below 1") {
				t.Errorf("%s --limit %s ended with %d: %s%s", list, limit, code, out, said)
			}
		}
	}
}
