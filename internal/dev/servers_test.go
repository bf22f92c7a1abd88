package dev

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestKafkaDataIsClosedToOtherUsers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kafka")
	if err := os.Mkdir(dir, 0o755); err != nil { // as earlier versions made it
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	broker, err := startKafka(dir, l, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the mode is %v, %v", info.Mode(), err)
	}
}
