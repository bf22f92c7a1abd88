// Package delivery is the producer side of Kafka. It publishes deliveries to
// the topics of their tenants, and creates and checks those topics.
//
// # Publishing
//
// A [Publisher] publishes deliveries of many tenants in one call. It groups them into one
// record batch per partition, and sends all batches for partitions with the same leader in
// one produce request: a dispatcher has few records for each of many topics, and the
// broker's main cost is the number of requests. Every request requires acknowledgement by
// all in-sync replicas.
//
// An error means that a record was not acknowledged; it may still be stored.
// Only [TooLargeError] and [DeletedTenantError] are final. The publisher itself retries after a
// broken connection, and splits batches that are too large. All other retries are left
// to the caller, which knows how long to retry and which tenants may wait. So a
// record may be stored more than once, always with the same run_id and attempt.
//
// # Topics
//
// [Topics] creates the topic of a new tenant, and checks at startup that topics keep records
// long enough: for the first delivery of a NON_BLOCKING run the record in Kafka is the only
// copy.
package delivery
