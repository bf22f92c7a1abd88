// Package delivery is the producer side of Kafka: it publishes deliveries to
// the topics of their tenants, and makes and checks those topics.
//
// # Publishing
//
// A [Publisher] takes publications of many tenants at once. It groups them into
// one record batch per partition and sends all batches whose partitions have
// the same leader in one produce request: a dispatcher has few records for each
// of many topics, and requests are what costs the broker most. Every request
// asks for the acknowledgement of all in-sync replicas.
//
// An error means that the record was not acknowledged, and says nothing about
// whether it was stored; only a [TooLargeError] is final. Nothing is retried
// here but what a broken connection or a batch of records that is too large in
// sum asks for: the caller retries, since only it knows for how long, and whom
// it may keep waiting. Records of a run may so be stored more than once, always
// with the same run_id and attempt.
//
// # Topics
//
// [Topics] makes the topic of a new tenant, and checks at start that topics
// keep records long enough: Kafka is the only home of a NON_BLOCKING run in
// flight.
package delivery
