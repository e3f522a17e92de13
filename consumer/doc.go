// Package consumer handles Kafka records as a member of a group: in order for
// each key, many keys at once, in batches, and commits an offset only when
// everything before it is decided.
//
// # What it promises
//
//   - Records of one key are handled one at a time within the process, whatever
//     topics and partitions they come from, and those of one partition in the
//     order of their offsets.
//   - An offset is committed only if all records before it are decided: their
//     handler returned nil or middleware.Skip. A record is never skipped because
//     of an error, and never because it cannot be identified.
//   - Nothing of a partition starts after it was revoked. What is with a handler
//     then gets Config.DrainTimeout, and what is decided by then is committed
//     before the partition goes to its next owner.
//   - A member that was thrown out of the group commits nothing for partitions
//     that may be somebody else's, also when it has joined again.
//   - A handler may be as slow as it likes: polling and heartbeats go on.
//
// It does not promise that a record is delivered once. After a crash, a rebalance
// that outlasts a handler, or a lost commit, records come again, perhaps while
// the first delivery is still under way in another process. Wrap the handler with
// an inbox (middleware.Inbox) to make the second delivery a duplicate, and tell the inbox
// what is committed (Route.Marker) if its rows are to go before the topic forgets the record.
//
// # Parts, lanes, batches
//
// A part is one assignment of one partition: its records in order of arrival, and
// the offset behind those that are decided. A lane is the queue of one key. The
// heads of ready lanes have different keys, so any of them can be handled
// together: an idle worker takes its share of them as a batch. A batch is as
// large as fits into Config.BatchTime by the recent time per message of its
// route, and no timer waits for it to fill. A lane is
//
//   - ready, until a worker takes its head;
//   - running, until the handler returns;
//   - parked, until its head is tried again;
//   - stopped, if its head can never succeed, until its partition is revoked.
//
// A lane outlives a revoke: a record that comes back to the process waits for
// the handler that still has it.
//
// # What an error does
//
// See middleware.Classify for the classes.
//
//   - Retry (also a panic, or a wrong number of errors): the lane is parked, from
//     Config.RetryMin up to Config.RetryMax, without end. Other keys go on. A
//     batch that failed as a whole is tried again message by message.
//   - Uncharged: the lane is parked for at most about a second, and no attempt is
//     counted.
//   - Fatal: the lane is stopped. That is logged as an error with topic,
//     partition, offset and key, and [Consumer.Ready] says so until somebody acts.
//     A record that cannot be identified is treated so as well.
//   - Halt: the consumer drains and [Consumer.Run] returns the error.
//
// A message that is not decided holds the commit of its partition back. The
// partition goes on until its window is full (Config.Window, Config.WindowBytes),
// and is then paused; after a crash all of the window is delivered again.
//
// # When Kafka is slow or away
//
// Run gives up if no broker answers at the start. Later on it waits, and goes on
// handling what it has. Commits that fail are tried again. A member that the
// group has thrown out ends the contexts of its handlers, commits nothing, and
// joins again. A topic that is missing or may not be read is reported by Ready and
// waited for. If the cluster has lost records, the partition is read again from
// its start. Once started, Run returns with an error by itself only if a handler
// halts it or the group refuses the member for good.
//
// # Example
//
//	c, err := consumer.New(consumer.Config{
//		Group:  "orders",
//		Client: []kgo.Opt{kgo.SeedBrokers("localhost:9092")},
//	}, consumer.Route{
//		Topics:   []string{"orders.timeout"},
//		Identify: identify, // from record to business key and message ID
//		Handler:  handler,
//	})
//	if err != nil {
//		return err
//	}
//	return c.Run(ctx)
package consumer
