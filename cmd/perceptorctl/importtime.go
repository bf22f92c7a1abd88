package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// The rates at which lines are stored if all runs on few cores: with and without keys.
const (
	expectedRate      = 300_000
	expectedKeyedRate = 50_000
)

// quotaLimit bounds how long the plan waits for the tenant's quota.
const quotaLimit = 2 * time.Second

// sayTime prints how long the import will take.
func (i *importing) sayTime(ctx context.Context) {
	if i.plan == nil || i.dryRun {
		return
	}
	limit, known := i.addRate(ctx)
	rate, why := i.expectedRate(limit)
	if !known {
		why = "; a quota of the tenant (add_rate) may slow it"
	}
	lines := max(0, i.plan.Lines-i.on.GetLineCount())
	took := time.Duration(float64(lines) / float64(rate) * float64(time.Second)).Round(time.Second)
	i.screen.say("      time about %s at %d lines per second%s", took, rate, why)
}

// expectedRate returns how many lines are stored per second, and what limits that if it is not the service. limit is
// the tenant's add_rate; 0: none.
func (i *importing) expectedRate(limit int64) (rate int64, why string) {
	rate = expectedRate
	if i.plan.Keys {
		rate = expectedKeyedRate
	}
	if asked := int64(cmp.Or(i.rate, i.on.GetMaxRate())); asked > 0 && asked < rate {
		rate, why = asked, ", which is --rate"
	}
	if limit > 0 && limit < rate {
		rate, why = limit, ", which is the tenant's quota add_rate"
	}
	return rate, why
}

// addRate returns the tenant's quota for adds, 0 for none. It is not known to a token that may only add.
func (i *importing) addRate(ctx context.Context) (limit int64, known bool) {
	ctx, cancel := context.WithTimeout(ctx, quotaLimit)
	defer cancel()
	f, err := perceptorv1.NewMonitoringServiceClient(i.conn).GetTenantFigures(ctx, &perceptorv1.GetTenantFiguresRequest{OmitPoints: true})
	if err != nil {
		return 0, false
	}
	for _, q := range f.Quotas {
		if q.Quota == task.QuotaAdds.String() {
			return q.Limit, true
		}
	}
	return 0, false
}

// away says why a call of an import is made again.
func (i *importing) away(err error) string {
	text := i.c.plain(err)
	switch quota := quotaText(err); {
	case isStorageLow(err):
		return "the import waits for free space: " + text
	case quota != "":
		return "the import waits for a quota of the tenant: " + quota
	case status.Code(err) == codes.ResourceExhausted:
		return "the service has too much to do: " + text
	}
	return "the service does not answer: " + text
}

// quotaText says which quota has refused a call, and its limit; it is empty if none has.
func quotaText(err error) string {
	if v := detailOf[*errdetails.QuotaFailure](err).GetViolations(); len(v) > 0 {
		return v[0].Description
	}
	return ""
}

// stored returns how many parts of how many are stored: lines if their number is known, otherwise bytes of the
// input. What was read but has no answer is not stored. total is 0 if neither is known.
func (i *importing) stored() (done, total int64) {
	lines, stored := i.lines.Load(), i.on.GetLineCount()+i.answered.Load()
	switch {
	case i.plan == nil || i.plan.Bytes == 0:
		return stored, 0
	case i.plan.Exact:
		done, total = stored, i.plan.Lines
	case lines > 0:
		done, total = int64(float64(i.bytes.Load())*min(1, float64(stored)/float64(lines))), i.plan.Bytes
	default:
		total = i.plan.Bytes
	}
	return max(0, min(done, total-1)), total // the end of the import is still to come
}

// progressText says how far the import is, in lines.
func (i *importing) progressText() string {
	word := "stored"
	if i.dryRun {
		word = "checked"
	}
	return fmt.Sprintf("%s read, %d %s, %d rejected%s", countText(i.lines.Load(), "line"), i.on.GetLineCount()+i.answered.Load(), word, i.rejects.count(), i.pauseText())
}
