package main

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/operate"
)

func TestListsAndBulkOperationsOfASmallStoreAreExact(t *testing.T) {
	t.Parallel()
	s := realStack(t)
	ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := operate.DefaultOptions()
	o.Tasks, o.Chunk, o.Days, o.Others = 10_000, 1000, 1, 0
	o.Quiet, o.Horizon = time.Hour, 3*time.Hour // beyond the stack's horizon, so that rows are demoted during the run
	o.Pages, o.Idle, o.Rate, o.Warmup, o.Alone = 5, 200*time.Millisecond, 50, time.Second, time.Second
	o.Throttle, o.ThrottleFor, o.Limit = 320, 3*time.Second, 3*time.Minute
	o.On, o.PageLimit = s, 0
	o.ListenerCommand, o.Progress = []string{self, harness.ListenerName}, testLog{t}
	report, err := harness.Run(ctx, &o)
	if err != nil {
		t.Error(err)
	}
	if report == nil {
		return
	}
	if err := harness.WriteTable(testLog{t}, report); err != nil {
		t.Error(err)
	}
	for _, fault := range report.AllFaults() {
		t.Error(fault)
	}
	if len(report.Bulk) != 10 || report.Verified != 7 || len(report.Sizes) != 2 || len(report.Sizes[1].Lists) < 10 || len(report.Sizes[1].Complete) == 0 || len(report.Console) < 15 {
		t.Errorf("wrong report: %d bulk operations, %d verifications, %d sizes, %d pages of the console",
			len(report.Bulk), report.Verified, len(report.Sizes), len(report.Console))
	}
	c, picture := report.Chart(), bytes.Buffer{}
	if c == nil {
		t.Fatal("the report has no chart")
	}
	if err := c.WriteSVG(&picture); err != nil || !bytes.Contains(picture.Bytes(), []byte("lateness")) {
		t.Errorf("wrong chart: %v", err)
	}
}
