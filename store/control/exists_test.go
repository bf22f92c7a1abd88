package control

import (
	"strings"
	"testing"
)

func TestATokenIsKnownToExistByItsID(t *testing.T) {
	s, _ := setup(t)
	tenant(t, s, "acme")
	_, secret := token(t, s, Token{Scopes: TenantScope, Tenant: "acme"})
	if s.Exists(secret) {
		t.Error("the ids were not read yet")
	}
	if err := s.readIDs(t.Context()); err != nil {
		t.Fatal(err)
	}
	wrong := secret[:len(secret)-4] + "AAAA"
	_, unknown := newSecret()
	if !s.Exists(secret) || !s.Exists(wrong) || s.Exists(unknown) || s.Exists("") || s.Exists(strings.Repeat("x", 60)) {
		t.Error("existence is not decided by the id")
	}
}
