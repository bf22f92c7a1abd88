package record

import (
	"strconv"

	"github.com/perceptor/perceptor/task"
)

// DeadEventType is the type of records on a dead-letter topic.
const DeadEventType = "perceptor.dead.v1"

// Names of the headers that only records of dead runs have.
const (
	HeaderReason = "perceptor_reason"
	HeaderError  = "perceptor_error"
	HeaderDiedAt = "perceptor_died_at"
)

// EncodeDead returns the record of a dead run for the tenant's dead-letter topic: the record
// of its last delivery, with another ce_type, and with headers for the reason, the error and
// the time of giving up.
func EncodeDead(d *task.DeadLetter, tenant string) (key, value []byte, headers []Header) {
	key, value, headers = Encode(lastDelivery(d), tenant)
	return key, value, deadHeaders(d, headers)
}

// lastDelivery returns the last delivery of a dead run.
func lastDelivery(d *task.DeadLetter) task.Publication {
	return task.Publication{
		Tenant: d.Tenant, Task: d.RunID.Task, Seq: d.RunID.Seq, Attempt: max(1, d.Attempt), Type: d.Type, Kind: d.Kind,
		ScheduledAt: d.ScheduledAt, AckTimeout: d.Terms.AckTimeout, Params: d.Params, Origin: d.Origin,
	}
}

// deadHeaders changes the headers of a run's record to those of a dead run.
func deadHeaders(d *task.DeadLetter, headers []Header) []Header {
	for i := range headers {
		if headers[i].Key != HeaderType {
			continue
		}
		if isPayload(headers[i].Value) {
			headers[i].Value = []byte(DeadPayloadEventType)
		} else {
			headers[i].Value = []byte(DeadEventType)
		}
	}
	return append(headers,
		Header{HeaderReason, []byte(d.Reason.String())},
		Header{HeaderError, []byte(d.Error)},
		Header{HeaderDiedAt, strconv.AppendInt(nil, int64(d.DiedAt), 10)})
}
