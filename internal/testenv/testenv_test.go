package testenv

import (
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

func TestSharedServersServe(t *testing.T) {
	t.Log(Database(t))
	t.Log(ZooKeeper(t).Addr(), ZooKeeper(t).PID())
	t.Log(Kafka(t).Addr())
}
