package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/task"
)

// premises is a provisioner in memory: what exists, by tenant and key.
type premises struct {
	mu     sync.Mutex
	exists map[string]bool
	fail   error
	// meet, if not nil, is called in each Provision.
	meet func()
	// taken are tenants, by number and name, whose names others have.
	taken map[string]bool
	// secrets are those of all keys that were provisioned, in order.
	secrets [][]byte
}

func (p *premises) each(t Tenant, f func(name string)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return p.fail
	}
	for _, k := range t.Keys {
		f(fmt.Sprintf("%d %s %d", t.ID, t.Name, k.ID))
	}
	return nil
}

func (p *premises) ProvisionNew(ctx context.Context, t Tenant) error {
	if p.taken[fmt.Sprintf("%d %s", t.ID, t.Name)] {
		return ErrTaken
	}
	return p.Provision(ctx, t)
}

func (p *premises) Provision(_ context.Context, t Tenant) error {
	if p.meet != nil {
		p.meet()
	}
	p.mu.Lock()
	for _, k := range t.Keys {
		p.secrets = append(p.secrets, k.Secret)
	}
	p.mu.Unlock()
	return p.each(t, func(name string) { p.exists[name] = true })
}

func (p *premises) ProvisionKey(ctx context.Context, t Tenant, k Key) error {
	t.Keys = []Key{k}
	return p.Provision(ctx, t)
}

func (p *premises) Revoke(_ context.Context, t Tenant, k Key) error {
	t.Keys = []Key{k}
	return p.each(t, func(name string) { delete(p.exists, name) })
}

func (p *premises) Remove(_ context.Context, t Tenant) error {
	return p.each(t, func(name string) { delete(p.exists, name) })
}

func (p *premises) want(t *testing.T, names ...string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	found := make([]string, 0, len(p.exists))
	for name := range p.exists {
		found = append(found, name)
	}
	if slices.Sort(found); !slices.Equal(found, names) {
		t.Errorf("provisioned are %q, want %q", found, names)
	}
}

func TestATenantIsProvisionedBeforeItIsStoredAndUnderANumberThatIsNeverUsedAgain(t *testing.T) {
	t.Parallel()
	s, cluster := setup(t)
	p := &premises{exists: map[string]bool{}}
	s.SetProvisioner(p)
	first := tenant(t, s, "acme")
	p.want(t, "1 acme 1")
	if len(first.Keys) != 1 || first.Keys[0].ID != 1 || len(first.Keys[0].Secret) != keyBytes || first.UID == "" {
		t.Errorf("keys = %+v of %q", first.Keys, first.UID)
	}
	p.fail = errors.New("Kafka does not answer")
	if _, err := s.CreateTenant(t.Context(), Tenant{Name: "bank"}); !errors.Is(err, p.fail) {
		t.Errorf("got %v, want %v", err, p.fail)
	}
	p.fail = nil
	if got := count(t, cluster, "tenant"); got != everywhere(1) {
		t.Errorf("rows by database: %v: a tenant that was not provisioned is stored", got)
	}
	if bank := tenant(t, s, "bank"); bank.ID != 3 {
		t.Errorf("id = %d, want 3: the failed creation may have left something under 2", bank.ID)
	}
	if _, err := s.CreateTenant(t.Context(), Tenant{Name: "acme"}); task.CodeOf(err) != task.AlreadyExists {
		t.Errorf("the name in use: %v", err)
	}
	p.want(t, "1 acme 1", "3 bank 1")
	if err := s.DropTenant(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	again := tenant(t, s, "acme")
	if again.ID != 5 || slices.Equal(again.Keys[0].Secret, first.Keys[0].Secret) {
		t.Errorf("the new tenant of the old name has the number %d and key %d: it shares something with its predecessor", again.ID, again.Keys[0].ID)
	}
}

// Another installation may name its topics in the same way.
func TestANewTenantPassesOverNumbersThatOthersHave(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	p := &premises{exists: map[string]bool{}, taken: map[string]bool{"1 acme": true, "2 acme": true}}
	s.SetProvisioner(p)
	if got := tenant(t, s, "acme"); got.ID != 3 {
		t.Errorf("id = %d, want 3", got.ID)
	}
	p.want(t, "3 acme 1")
	for i := range 2 * maxTaken {
		p.taken[fmt.Sprintf("%d bank", i)] = true
	}
	if _, err := s.CreateTenant(t.Context(), Tenant{Name: "bank"}); !errors.Is(err, ErrTaken) || task.CodeOf(err) != task.Unavailable {
		t.Errorf("all numbers are taken: %v", err)
	}
	p.want(t, "3 acme 1")
}

func TestARotatedKeyOverlapsAndIsRemovedWhenItHasEnded(t *testing.T) {
	t.Parallel()
	s, cluster := setup(t)
	p := &premises{exists: map[string]bool{}}
	s.SetProvisioner(p)
	tenant(t, s, "acme")
	got, err := s.RotateKey(t.Context(), "acme", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	p.want(t, "1 acme 1", "1 acme 2")
	if len(got.Keys) != 2 || got.Keys[0].End-got.Keys[1].Start != task.Instant((time.Hour-KeyLead).Milliseconds()) || got.Keys[1].End != 0 {
		t.Errorf("keys = %+v, want the first to end an hour from now and the second to start in a minute", got.Keys)
	}
	if n := count(t, cluster, "tenant WHERE jsonb_array_length(keys) = 2"); n != everywhere(1) {
		t.Errorf("databases with both keys: %v", n)
	}
	versions, err := s.TenantVersions(t.Context(), []int32{1, 2})
	if err != nil || !versions.Decided || len(versions.Of) != 1 || versions.Of[1] != got.Version {
		t.Errorf("TenantVersions = %+v, %v, want version %d of tenant 1 alone, decided", versions, err, got.Version)
	}
	if err := s.dropEndedKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.want(t, "1 acme 1", "1 acme 2") // none has ended
	if _, err := s.RotateKey(t.Context(), "acme", 0); err != nil {
		t.Fatal(err)
	}
	p.fail = errors.New("Kafka does not answer")
	if err := s.dropEndedKeys(t.Context()); !errors.Is(err, p.fail) {
		t.Errorf("got %v, want %v", err, p.fail)
	}
	if n := count(t, cluster, "tenant WHERE jsonb_array_length(keys) = 3"); n != everywhere(1) {
		t.Errorf("databases with all keys: %v: a key whose login still exists is forgotten", n)
	}
	p.fail = nil
	if err := s.dropEndedKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.want(t, "1 acme 3")
	if n := count(t, cluster, "tenant WHERE jsonb_array_length(keys) = 1"); n != everywhere(1) {
		t.Errorf("databases with the only key that is valid: %v; a rotation without overlap ends all others", n)
	}
}

func TestTheKeysOfATenantAreBounded(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	tenant(t, s, "acme")
	for range MaxKeys - 1 {
		if _, err := s.RotateKey(t.Context(), "acme", time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.RotateKey(t.Context(), "acme", time.Hour)
	wantCode(t, err, task.FailedPrecondition)
	if _, err = s.RotateKey(t.Context(), "acme", 0); err != nil {
		t.Errorf("%v; a rotation without overlap leaves one key, and is always possible", err)
	}
	_, err = s.RotateKey(t.Context(), "nobody", time.Hour)
	wantCode(t, err, task.NotFound)
}

// TestRotationsAtTheSameTimeMakeOneKeyAndSetItsPassword lets two calls set the password of the
// login before one of them stores its result.
func TestRotationsAtTheSameTimeMakeOneKeyAndSetItsPassword(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	p := &premises{exists: map[string]bool{}}
	s.SetProvisioner(p)
	tenant(t, s, "acme")
	var both sync.WaitGroup
	both.Add(2)
	p.secrets, p.meet = nil, func() { both.Done(); both.Wait() }
	var calls errgroup.Group
	for _, overlap := range []time.Duration{24 * time.Hour, 0} {
		calls.Go(func() error {
			_, err := s.RotateKey(t.Context(), "acme", overlap)
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		t.Error(err)
	}
	got, err := s.Tenant(t.Context(), "acme")
	if err != nil || len(got.Keys) != 2 || got.Keys[1].Reserved() {
		t.Fatalf("keys = %+v, %v, want a second one that has started", got.Keys, err)
	}
	for _, secret := range p.secrets {
		if !slices.Equal(secret, got.Keys[1].Secret) {
			t.Error("a call has set a password that is not of the stored key")
		}
	}
	if now := task.At(time.Now()); !got.Keys[0].Ended(now.Add(time.Second)) {
		t.Errorf("the first key ends at %s; the overlap of 0 does not count", got.Keys[0].End)
	}
	p.want(t, "1 acme 1", "1 acme 2")
}

func TestARotationThatWasCutShortIsContinuedByTheNext(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	p := &premises{exists: map[string]bool{}}
	s.SetProvisioner(p)
	tenant(t, s, "acme")
	p.fail = errors.New("Kafka does not answer")
	for range 2 {
		if _, err := s.RotateKey(t.Context(), "acme", 0); !errors.Is(err, p.fail) {
			t.Fatalf("got %v, want %v", err, p.fail)
		}
	}
	reserved, err := s.Tenant(t.Context(), "acme")
	if err != nil || len(reserved.Keys) != 2 || !reserved.Keys[1].Reserved() || reserved.Keys[0].End != 0 {
		t.Fatalf("keys = %+v, %v, want a reserved one beside the valid one", reserved.Keys, err)
	}
	p.fail = nil
	got, err := s.RotateKey(t.Context(), "acme", 0)
	if err != nil || len(got.Keys) != 2 || got.Keys[1].Reserved() || !slices.Equal(got.Keys[1].Secret, reserved.Keys[1].Secret) {
		t.Errorf("keys = %+v, %v, want the reserved one to have started", got.Keys, err)
	}
}

// TestTheClockByWhichKeysEndIsThatOfTheDatabases reads it with all that callers are identified by.
func TestTheClockByWhichKeysEndIsThatOfTheDatabases(t *testing.T) {
	t.Parallel()
	s, cluster := setup(t)
	acme, err := s.CreateTenant(t.Context(), Tenant{Name: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	_, secret := token(t, s, Token{Scopes: TenantScope, Tenant: "acme"})
	for d := range task.Databases {
		in(t, cluster, d, `CREATE OR REPLACE FUNCTION now_ms() RETURNS int8 LANGUAGE sql STABLE PARALLEL SAFE
			AS $$ SELECT floor(date_part('epoch', statement_timestamp()) * 1000)::int8 + 3600000 $$`)
	}
	for what, read := range map[string]func(*Store) error{
		"token":          func(s *Store) error { _, err := s.Authenticate(t.Context(), secret); return err },
		"name of tenant": func(s *Store) error { _, err := s.Tenant(t.Context(), "acme"); return err },
		"versions":       func(s *Store) error { _, err := s.TenantVersions(t.Context(), []int32{acme.ID}); return err },
	} {
		s := New(cluster, nil)
		if ahead := s.Now().Sub(task.At(time.Now())); ahead > time.Minute {
			t.Errorf("%s: %v ahead before anything was read", what, ahead)
		}
		err := read(s)
		if ahead := s.Now().Sub(task.At(time.Now())); err != nil || ahead < 59*time.Minute || ahead > 61*time.Minute {
			t.Errorf("%s: %v ahead, %v; want an hour", what, ahead, err)
		}
	}
}
