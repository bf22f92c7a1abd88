package app

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/forecast"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	// forecastWithin bounds the questions to the databases.
	forecastWithin = 900 * time.Millisecond
	// staleForecast is the age at which the forecast of a database is of no use.
	staleForecast = 10 * time.Minute
)

// Forecast implements [server.Monitoring]. It adds the calendars that the chores of each database
// have counted.
func (m *monitoring) Forecast(ctx context.Context, tenant int32) (*perceptorv1.Forecast, error) {
	ctx, cancel := context.WithTimeout(ctx, forecastWithin)
	defer cancel()
	var asking sync.WaitGroup
	var calendars [task.Databases]*forecast.Calendar
	var counted, clocks [task.Databases]task.Instant
	for d := range task.Databases {
		asking.Go(func() {
			c, at, now, err := m.api.shards.Forecast(ctx, d, tenant)
			if err == nil && now.Sub(at) < staleForecast {
				calendars[d], counted[d], clocks[d] = c, at, now
			}
		})
	}
	asking.Wait()
	out, oldest, now := &perceptorv1.Forecast{}, task.Never, task.Instant(0)
	for d, c := range calendars {
		if c == nil {
			out.MissingDatabases = append(out.MissingDatabases, int32(d))
			continue
		}
		oldest, now = min(oldest, counted[d]), max(now, clocks[d])
	}
	if len(out.MissingDatabases) == task.Databases {
		return nil, task.Errorf(task.ReasonDatabaseUnavailable, "no database has a forecast; it is made within two minutes after the start of a dispatcher, or later if it is busy and has many millions of tasks to count")
	}
	sum := forecast.Empty(now)
	for _, c := range calendars {
		if c != nil {
			sum.Join(c)
		}
	}
	out.MeasureTime, out.Due, out.Later = timestamppb.New(oldest.Time()), sum.Due, sum.Later
	minutes, hours, days := sum.Spans()
	out.Minutes, out.Hours, out.Days = spansReply(minutes), spansReply(hours), spansReply(days)
	return out, nil
}

func spansReply(spans []forecast.Span) []*perceptorv1.ForecastSpan {
	out := make([]*perceptorv1.ForecastSpan, len(spans))
	for i, s := range spans {
		out[i] = &perceptorv1.ForecastSpan{StartTime: timestamppb.New(s.Begin.Time()), Next: s.Next, Projected: s.Projected}
	}
	return out
}
