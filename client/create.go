package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"net"

	"github.com/perceptor/perceptor/internal/kafkadial"
)

// kafka-go's consumer group lets brokers create the topic when it asks for its partitions, which they do by default. A
// topic that was deleted, with its tenant or by mistake, would be back within seconds with the brokers' own
// settings: with any number of partitions and replicas, and perhaps with one of which records are lost that were
// acknowledged, for which dispatchers refuse to start.

// asking returns a dial, with TLS unless the configuration is nil, of connections over which no topic is created.
func asking(conf *tls.Config) kafkadial.Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if conn, err = withTLS(ctx, conf, conn, address); err != nil {
			return nil, err
		}
		return creatingNone{conn}, nil
	}
}

// creatingNone is a connection of kafka-go to a broker. kafka-go writes each request at once.
type creatingNone struct{ net.Conn }

// Of a request: the length of the rest, the number of its kind, and the version.
const (
	requestHead     = 8
	metadataKind    = 3
	metadataVersion = 6 // ends with the byte that allows the creation; kafka-go has no later one
)

// Write implements [net.Conn].
func (c creatingNone) Write(b []byte) (int, error) {
	if len(b) > requestHead && int(binary.BigEndian.Uint32(b))+4 == len(b) &&
		binary.BigEndian.Uint16(b[4:]) == metadataKind && binary.BigEndian.Uint16(b[6:]) == metadataVersion {
		b = bytes.Clone(b)
		b[len(b)-1] = 0
	}
	return c.Conn.Write(b)
}
