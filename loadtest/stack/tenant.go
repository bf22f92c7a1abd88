package stack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/task"
)

const (
	tenantName = "load"
	callWait   = 30 * time.Second
	goneEvery  = 200 * time.Millisecond

	createTries = 5
	createPause = time.Second
)

// Counts returns the task counts of the load's tenant.
func (s *Stack) Counts(ctx context.Context) (counts *perceptorv1.CountTasksResponse, err error) {
	return s.countsOf(ctx, s.Token)
}

// countsOf returns the task counts of the tenant of a token.
func (s *Stack) countsOf(ctx context.Context, token string) (counts *perceptorv1.CountTasksResponse, err error) {
	for address := range strings.SplitSeq(s.Address, ",") { // some of the addresses may not answer
		err = s.dial(ctx, address, token, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			counts, err = perceptorv1.NewTaskServiceClient(conn).CountTasks(ctx, &perceptorv1.CountTasksRequest{})
			return err
		})
		if err == nil {
			return counts, nil
		}
	}
	return nil, fmt.Errorf("count the tasks: %w", err)
}

// Sum returns the task counts of the load's tenant, summed over all types.
func (s *Stack) Sum(ctx context.Context) (sum task.Counts, err error) { return s.SumOf(ctx, s.Token) }

// SumOf returns the task counts of the tenant of a token, summed over all types.
func (s *Stack) SumOf(ctx context.Context, token string) (sum task.Counts, err error) {
	a, err := s.countsOf(ctx, token)
	for _, c := range a.GetCounts() {
		p := c.GetPurgedByState()
		sum = sum.Plus(task.Counts{
			Added: c.GetAdded(), Scheduled: c.GetScheduled(), Running: c.GetRunning(),
			Completed: c.GetCompleted(), Cancelled: c.GetCancelled(), Failed: c.GetFailed(),
			PurgedCompleted: p.GetCompleted(), PurgedCancelled: p.GetCancelled(), PurgedFailed: p.GetFailed(),
		})
	}
	return sum, err
}

// dial calls f with a connection to an API and a context that carries the token.
func (s *Stack) dial(ctx context.Context, address, token string, f func(context.Context, *grpc.ClientConn) error) error {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), callWait)
	defer cancel()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(s.Transport()))
	if err != nil {
		return fmt.Errorf("dial %s: %w", address, err)
	}
	defer conn.Close()
	return f(ctx, conn)
}

// CreateTenant creates a tenant without quotas, because experiments measure what an
// installation can do. It returns the secret of a token for the tenant.
func (s *Stack) CreateTenant(ctx context.Context, name string) (secret string, err error) {
	return s.CreateTenantAs(ctx, &perceptorv1.Tenant{
		Name: name, AddRate: task.NoLimit, MaxBacklog: task.NoLimit, ReadRate: task.NoLimit, UpdateRate: task.NoLimit, PreviewRate: task.NoLimit,
		RunRate: task.NoLimit, ByteRate: task.NoLimit, MaxCalls: task.NoLimit, MaxConnections: task.NoLimit,
	})
}

// CreateTenantAs creates a tenant with the given settings. It returns the secret of a token for
// the tenant.
func (s *Stack) CreateTenantAs(ctx context.Context, t *perceptorv1.Tenant) (secret string, err error) {
	name := t.Name
	err = s.asAdmin(ctx, func(ctx context.Context, api perceptorv1.AdminServiceClient) error {
		if err := createPatiently(ctx, api, t); err != nil {
			return fmt.Errorf("create tenant: %w", err)
		}
		token, err := api.CreateToken(ctx, &perceptorv1.CreateTokenRequest{Token: &perceptorv1.Token{
			Scope: perceptorv1.Token_TENANT, Tenant: name, Description: "load test",
		}})
		if err != nil {
			return fmt.Errorf("create token: %w", err)
		}
		secret = token.GetSecret()
		return nil
	})
	return secret, err
}

// createPatiently creates a tenant, and tries again while a database does not answer in time, as a
// busy machine's may not. A tenant that exists then was created by a try before.
func createPatiently(ctx context.Context, api perceptorv1.AdminServiceClient, t *perceptorv1.Tenant) error {
	for tries := 0; ; tries++ {
		_, err := api.CreateTenant(ctx, &perceptorv1.CreateTenantRequest{Tenant: t})
		switch code := status.Code(err); {
		case tries > 0 && code == codes.AlreadyExists:
			return nil
		case code != codes.Unavailable || tries == createTries:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(createPause):
		}
	}
}

// UpdateTenant sets the named fields of a tenant to their values in t.
func (s *Stack) UpdateTenant(ctx context.Context, t *perceptorv1.Tenant, fields ...string) error {
	return s.asAdmin(ctx, func(ctx context.Context, api perceptorv1.AdminServiceClient) error {
		_, err := api.UpdateTenant(ctx, &perceptorv1.UpdateTenantRequest{Name: t.Name, Tenant: t, UpdateMask: &fieldmaskpb.FieldMask{Paths: fields}})
		return err
	})
}

// Tenant returns a tenant with its settings.
func (s *Stack) Tenant(ctx context.Context, name string) (t *perceptorv1.Tenant, err error) {
	err = s.asAdmin(ctx, func(ctx context.Context, api perceptorv1.AdminServiceClient) (err error) {
		t, err = api.GetTenant(ctx, &perceptorv1.GetTenantRequest{Name: name})
		return err
	})
	return t, err
}

// Topic returns the name of a tenant's Kafka topic.
func (s *Stack) Topic(ctx context.Context, name string) (topic string, err error) {
	t, err := s.Tenant(ctx, name)
	return t.GetTopic(), err
}

// As calls f with a connection to the API and a context that carries a token.
func (s *Stack) As(ctx context.Context, token string, f func(context.Context, *grpc.ClientConn) error) error {
	return s.dial(ctx, s.Address, token, f)
}

// TenantNumber returns the number of a tenant, which determines its home database.
func (s *Stack) TenantNumber(ctx context.Context, name string) (int32, error) {
	var servers []store.Server
	for _, o := range s.owners.servers {
		servers = append(servers, store.Server{DSN: o.dsn})
	}
	cluster, err := store.Open(ctx, store.Config{Servers: servers, Application: "loadtest"})
	if err != nil {
		return 0, err
	}
	defer cluster.Close()
	t, err := control.New(cluster, slog.New(slog.DiscardHandler)).Tenant(ctx, name)
	return t.ID, err
}

// DeleteTenant begins to delete a tenant with all its data, or returns the progress of that
// deletion. codes.NotFound means that the deletion is complete.
func (s *Stack) DeleteTenant(ctx context.Context, name string) (progress *perceptorv1.DeleteTenantResponse, err error) {
	err = s.asAdmin(ctx, func(ctx context.Context, api perceptorv1.AdminServiceClient) error {
		progress, err = api.DeleteTenant(ctx, &perceptorv1.DeleteTenantRequest{Name: name})
		return err
	})
	return progress, err
}

// DropTenant deletes a tenant and returns when all its data is gone.
func (s *Stack) DropTenant(ctx context.Context, name string) error {
	poll := time.NewTicker(goneEvery)
	defer poll.Stop()
	for {
		_, err := s.DeleteTenant(ctx, name)
		if status.Code(err) == codes.NotFound {
			return nil
		}
		if err != nil {
			return fmt.Errorf("delete tenant %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("delete tenant %s: %w", name, ctx.Err())
		case <-poll.C:
		}
	}
}

// asAdmin calls the API with a token of the scope ADMIN. Only a stack that this program
// started has such a token.
func (s *Stack) asAdmin(ctx context.Context, f func(context.Context, perceptorv1.AdminServiceClient) error) error {
	if s.admin == "" {
		return errors.New("this program did not start the stack, so it cannot change its tenants")
	}
	first, _, _ := strings.Cut(s.Address, ",")
	return s.dial(ctx, first, s.admin, func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, perceptorv1.NewAdminServiceClient(conn))
	})
}

// ExternalOptions describe a running installation.
type ExternalOptions struct {
	Address, Token string
	// Postgres is the connection string of the server with all databases, to observe
	// take-overs. If it is empty, take-overs are not observed.
	Postgres string
}

// External returns a stack for a running installation. Its parts cannot be disturbed.
func External(o ExternalOptions) (*Stack, error) {
	if o.Address == "" || o.Token == "" {
		return nil, fmt.Errorf("an external stack needs an address and a token, but the address is %q and the token has %d bytes", o.Address, len(o.Token))
	}
	s := &Stack{Address: o.Address, Token: o.Token, Versions: map[string]string{}}
	if o.Postgres != "" {
		s.owners, s.postgresDSN = newOwners(o.Postgres), o.Postgres
	}
	return s, nil
}

// watchEvery is the time between two reads of the owners. The database dates each
// take-over, so this time does not blur the result.
const watchEvery = 50 * time.Millisecond

// Owners reads the owner tables of all databases.
type Owners struct{ servers []ownersOf }

// ownersOf reads the owner tables of the databases on one server.
type ownersOf struct{ dsn, query string }

// newOwners returns a reader for the servers, among which the databases are distributed
// evenly in order.
func newOwners(dsns ...string) *Owners {
	o := &Owners{}
	each := task.Databases / len(dsns)
	for i, dsn := range dsns {
		parts := make([]string, each)
		for d := range parts {
			parts[d] = fmt.Sprintf("SELECT item, epoch, name, acquired_at FROM %s.owner WHERE item < %d",
				pgx.Identifier{store.SchemaName(i*each + d)}.Sanitize(), task.Shards)
		}
		o.servers = append(o.servers, ownersOf{dsn, strings.Join(parts, " UNION ALL ")})
	}
	return o
}

// Owner is the owner of a shard.
type Owner struct {
	Shard      task.Shard
	Epoch      int64
	Name       string // empty if the shard has no owner
	AcquiredAt task.Instant
}

// List returns the owners of all shards.
func (o *Owners) List(ctx context.Context) ([]Owner, error) {
	conns := make([]*pgx.Conn, len(o.servers))
	defer closeAll(ctx, conns)
	return o.list(ctx, conns)
}

// list connects the connections that are nil or closed and returns the owners of all shards.
func (o *Owners) list(ctx context.Context, conns []*pgx.Conn) (all []Owner, err error) {
	for i, s := range o.servers {
		if conns[i] == nil || conns[i].IsClosed() {
			if conns[i], err = pgx.Connect(ctx, s.dsn); err != nil {
				return nil, fmt.Errorf("list owners: %w", err)
			}
		}
		rows, err := conns[i].Query(ctx, s.query)
		if err != nil {
			return nil, fmt.Errorf("list owners: %w", err)
		}
		some, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Owner])
		if err != nil {
			return nil, fmt.Errorf("list owners: %w", err)
		}
		all = append(all, some...)
	}
	return all, nil
}

func closeAll(ctx context.Context, conns []*pgx.Conn) {
	for _, conn := range conns {
		if conn != nil {
			conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the connection is not used again
		}
	}
}

// AwaitAll waits until every shard has an owner and each named dispatcher owns a shard.
func (o *Owners) AwaitAll(ctx context.Context, names []string) error {
	var state string
	err := o.poll(ctx, func(all []Owner) bool {
		owned, seen := 0, map[string]bool{}
		for _, owner := range all {
			if owner.Name != "" {
				owned++
			}
			seen[owner.Name] = true
		}
		missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return seen[name] })
		state = fmt.Sprintf("%d of %d shards have an owner, %d of %d dispatchers have none", owned, len(all), len(missing), len(names))
		return owned == task.Shards && len(missing) == 0
	})
	if err != nil && state != "" {
		return fmt.Errorf("%s: %w", state, err)
	}
	return err
}

// AwaitTakeover waits until all given shards have new owners. It returns the database's
// time of the last change.
func (o *Owners) AwaitTakeover(ctx context.Context, before []Owner) (task.Instant, error) {
	var last task.Instant
	left := map[task.Shard]Owner{}
	for _, b := range before {
		left[b.Shard] = b
	}
	err := o.poll(ctx, func(all []Owner) bool {
		for _, now := range all {
			if b, ok := left[now.Shard]; ok && now.Epoch > b.Epoch && now.Name != "" && now.Name != b.Name {
				delete(left, now.Shard)
				last = max(last, now.AcquiredAt)
			}
		}
		return len(left) == 0
	})
	if err != nil {
		return 0, fmt.Errorf("%d of %d shards have not been taken over: %w", len(left), len(before), err)
	}
	return last, nil
}

// poll reads the owners until done returns true or ctx ends, even if a database fails to answer.
func (o *Owners) poll(ctx context.Context, done func([]Owner) bool) error {
	conns := make([]*pgx.Conn, len(o.servers))
	defer closeAll(ctx, conns)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, probeWait)
		all, err := o.list(limited, conns)
		cancel()
		if err == nil && done(all) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("watch owners: %w", ctx.Err())
		case <-tick.C:
		}
	}
}
