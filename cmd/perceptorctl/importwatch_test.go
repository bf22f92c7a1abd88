package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// operations has the bulk operations of a tenant.
type operations struct {
	perceptorv1.UnimplementedBulkServiceServer
	all []*perceptorv1.BulkOperation
}

func (o *operations) ListBulkOperations(context.Context, *perceptorv1.ListBulkOperationsRequest) (*perceptorv1.ListBulkOperationsResponse, error) {
	return &perceptorv1.ListBulkOperationsResponse{Operations: o.all}, nil
}

func TestARollbackThatIsPausedIsSaidToBe(t *testing.T) {
	api(t, func(s *grpc.Server) {
		perceptorv1.RegisterBulkServiceServer(s, &operations{all: []*perceptorv1.BulkOperation{
			{Id: 11, ImportId: 7, State: perceptorv1.BulkOperation_PAUSED}, {Id: 12, ImportId: 8, State: perceptorv1.BulkOperation_RUNNING},
		}})
	})
	conn, err := grpc.NewClient("dns:///"+os.Getenv("PERCEPTOR_ADDRESS"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing depends on it
	if got := pausedRollback(t.Context(), conn, 7); !strings.Contains(got, "paused: perceptorctl bulk resume 11 goes on") {
		t.Errorf("of a paused one: %q", got)
	}
	for _, id := range []int64{8, 9} {
		if got := pausedRollback(t.Context(), conn, id); got != "" {
			t.Errorf("of import %d: %q", id, got)
		}
	}
}
