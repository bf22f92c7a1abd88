package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// space prints what each server has for the import. CreateImport refuses one for which a server has no room.
func (i *importing) space(ctx context.Context) error {
	if i.plan == nil || i.dryRun {
		return nil
	}
	var p *perceptorv1.ImportPlan
	err := i.retry(ctx, func(ctx context.Context) (err error) {
		p, err = i.api.PlanImport(ctx, &perceptorv1.PlanImportRequest{ExpectedBytes: i.plan.DiskBytes()})
		return err
	})
	if status.Code(err) == codes.Unimplemented { // an older service
		i.screen.say("      whether the servers have the space is not known")
		return nil
	}
	if err != nil {
		return err
	}
	for _, s := range p.Servers {
		i.screen.say("      %s", spaceText(s))
	}
	return nil
}

// spaceText says what a server has for an import.
func spaceText(s *perceptorv1.ServerSpace) string {
	var names []string
	for _, d := range s.Databases {
		names = append(names, fmt.Sprint(d))
	}
	what := fmt.Sprintf("server of databases %s: %s needed", ranges(names), sizeText(s.NeededBytes))
	switch {
	case s.TotalBytes == 0:
		return what + "; how much is free is not known (postgres.servers[].storage): compare"
	case !s.Fits:
		return fmt.Sprintf("%s; NOT ENOUGH: %s of %s free, of which %s is left to others", what, sizeText(s.FreeBytes), sizeText(s.TotalBytes), sizeText(s.ReservedBytes))
	}
	return fmt.Sprintf("%s; %s of %s free", what, sizeText(s.FreeBytes), sizeText(s.TotalBytes))
}

// ranges shortens a list of names.
func ranges(names []string) string {
	if len(names) > 2 {
		return names[0] + " to " + names[len(names)-1]
	}
	return strings.Join(names, " and ")
}

// isStorageLow reports whether a chunk was refused because a server has little free space.
func isStorageLow(err error) bool { return reasonOf(err) == task.ReasonStorageLow }

// pausing is what an import waits for.
type pausing struct {
	why   perceptorv1.Import_PauseReason
	until time.Time
}

// waitsFor are the words for reasons.
var waitsFor = map[perceptorv1.Import_PauseReason]string{
	perceptorv1.Import_RATE:        "--rate",
	perceptorv1.Import_QUOTA:       "the tenant's rates",
	perceptorv1.Import_DUE_TASKS:   "due tasks",
	perceptorv1.Import_STANDBYS:    "standbys",
	perceptorv1.Import_CHECKPOINTS: "checkpoints",
	perceptorv1.Import_ARCHIVE:     "the archive of the log",
	perceptorv1.Import_SLOTS:       "replication slots",
	perceptorv1.Import_STORAGE:     "free space",
}

// pause notes the pause that an answer asks for.
func (i *importing) pause(a *perceptorv1.WriteImportResponse) {
	if a.PauseMs > 0 {
		i.paused.Store(&pausing{a.PauseReason, time.Now().Add(time.Duration(a.PauseMs) * time.Millisecond)})
	}
}

// pauseText says what the import waits for now, or is empty.
func (i *importing) pauseText() string {
	p := i.paused.Load()
	if p == nil || time.Now().After(p.until) || waitsFor[p.why] == "" {
		return ""
	}
	return ", waits for " + waitsFor[p.why]
}
