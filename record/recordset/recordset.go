// Package recordset writes and reads record sets: batches of records in Kafka's message format 2
// (https://kafka.apache.org/documentation/#recordbatch), as requests to publish and answers to fetches have them.
//
// The dispatcher writes and each listener reads thousands of small records a second. The library's encoder and decoder
// are general: they cost three to fifteen times as much, since they allocate each part of each header. And the library
// unpacks all batches of an answer before any record can be verified, so anyone who may write to a topic could make small
// batches that fill the memory of every listener that reads them. Here unpacked bytes are bounded.
//
// Tests compare both directions with the library. The functions keep nothing, and may be called concurrently.
package recordset

import "hash/crc32"

// Positions in a batch, and bits of its attributes.
const (
	lengthAt, lengthFrom = 8, 12 // the length counts the bytes from lengthFrom on
	leaderEpochAt        = 12
	magicAt              = 16
	crcAt, crcFrom       = 17, 21 // the checksum covers the bytes from crcFrom on
	attributesAt         = 21
	lastDeltaAt          = 23
	firstTimeAt          = 27
	lastTimeAt           = 35
	producerIDAt         = 43
	producerEpochAt      = 51
	sequenceAt           = 53
	countAt              = 57
	recordsAt            = 61
	codecBits            = 7
	controlBit           = 1 << 5
)

// format is the message format of all batches.
const format = 2

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
