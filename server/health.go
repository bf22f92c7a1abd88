package server

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/perceptor/perceptor/internal/share"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// health implements the standard health service. Its watches end with the
// server, so that they do not delay a graceful stop.
type health struct {
	*grpchealth.Server
	// watches has the places of watches, by source.
	watches *share.Pool[source]
	closed  context.Context
	close   context.CancelFunc
}

// maxWatches is the most watches of health at once.
const maxWatches = 256

func newHealth() *health {
	h := &health{Server: grpchealth.NewServer(), watches: share.NewPool[source](maxWatches, 0)}
	h.closed, h.close = context.WithCancel(context.Background())
	h.set(false)
	return h
}

// set sets whether the server accepts calls.
func (h *health) set(serving bool) {
	state := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if serving {
		state = grpc_health_v1.HealthCheckResponse_SERVING
	}
	for _, service := range []string{"",
		perceptorv1.TaskService_ServiceDesc.ServiceName,
		perceptorv1.RunService_ServiceDesc.ServiceName,
		perceptorv1.AdminService_ServiceDesc.ServiceName,
		perceptorv1.AssignmentService_ServiceDesc.ServiceName,
	} {
		h.SetServingStatus(service, state)
	}
}

func (h *health) ready() error {
	r, err := h.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	if r.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		return errors.New("the API is not serving")
	}
	return nil
}

// maxServiceBytes is the longest name of a service that is looked up. A watch keeps it.
const maxServiceBytes = 200

func named(r *grpc_health_v1.HealthCheckRequest) error {
	if n := len(r.Service); n > maxServiceBytes {
		return invalid([]task.Fault{faultf("service", "has %d bytes; at most %d are allowed", n, maxServiceBytes)})
	}
	return nil
}

// Check implements the health service.
func (h *health) Check(ctx context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	arrived(ctx)
	if err := named(r); err != nil {
		return nil, err
	}
	return h.Server.Check(ctx, r)
}

// Watch streams changes until the caller leaves or the server stops. It needs no token, so
// each source has a share of the watches.
func (h *health) Watch(r *grpc_health_v1.HealthCheckRequest, stream grpc_health_v1.Health_WatchServer) error {
	arrived(stream.Context())
	if err := named(r); err != nil {
		return err
	}
	from := callSource(stream.Context())
	if !h.watches.Take(from, 1) {
		return errBusy
	}
	defer h.watches.Give(from, 1)
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(h.closed, cancel)()
	return h.Server.Watch(r, watch{stream, ctx})
}

type watch struct {
	grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]
	ctx context.Context
}

func (w watch) Context() context.Context { return w.ctx }
