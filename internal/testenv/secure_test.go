package testenv

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestASecureZooKeeperSpeaksOnlyTLS(t *testing.T) {
	t.Parallel()
	ca := NewCA(t)
	s := NewZooKeeper(t, Secure(ca))
	if err := s.Answers(t.Context()); err != nil {
		t.Error(err)
	}
	if err := serves(t.Context(), s.Addr(), nil); err == nil {
		t.Error("it answers in the clear")
	}
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", s.Addr(), NewCA(t).Trust())
	if err == nil {
		conn.Close()
		t.Error("its certificate is of every CA")
	}
}

func TestASecurePostgresSpeaksOnlyTLS(t *testing.T) {
	t.Parallel()
	ca := NewCA(t)
	s := NewPostgres(t, SecurePostgres(ca, ca.Issue(t, Server)))
	if !strings.Contains(s.DSN(), "sslmode=verify-full") {
		t.Errorf("the connection string is %s", s.DSN())
	}
	if err := s.Answers(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, dsn := range []string{
		strings.ReplaceAll(s.DSN(), "verify-full", "disable"), strings.ReplaceAll(s.DSN(), "sslrootcert=", "sslrootcert="+NewCA(t).File+"&x="),
	} {
		conn, err := pgx.Connect(ctx, dsn)
		if err == nil {
			conn.Close(ctx)
			t.Errorf("connected with %s", dsn)
		}
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Error(err)
	}
}
