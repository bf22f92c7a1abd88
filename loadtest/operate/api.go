package operate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

const callLimit = time.Minute

// lister asks for single pages, which the SDK hides.
type lister struct {
	conn  *grpc.ClientConn
	tasks perceptorv1.TaskServiceClient
	token string
}

func newLister(address, token string) (*lister, error) {
	first, _, _ := strings.Cut(address, ",")
	conn, err := grpc.NewClient(first, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", first, err)
	}
	return &lister{conn, perceptorv1.NewTaskServiceClient(conn), token}, nil
}

func (l *lister) close() { l.conn.Close() } //nolint:errcheck // nothing is on its way

// page returns one page and how long it took.
func (l *lister) page(ctx context.Context, q *perceptorv1.ListTasksRequest) (*perceptorv1.ListTasksResponse, time.Duration, error) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+l.token), callLimit)
	defer cancel()
	begin := time.Now()
	page, err := l.tasks.ListTasks(ctx, q)
	return page, time.Since(begin), err
}

// refusal returns what a refused list was told; "" when it was answered.
func (l *lister) refusal(ctx context.Context, q *perceptorv1.ListTasksRequest) (string, error) {
	_, _, err := l.page(ctx, q)
	if status.Code(err) == codes.FailedPrecondition {
		return status.Convert(err).Message(), nil
	}
	return "", err
}
