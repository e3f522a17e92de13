// Package churn drives consumers through rebalances and says whether one of them
// broke a promise.
//
// Members of one group join, leave, are thrown out and lose commits, while their
// handlers fail, panic, hang and outlive their partitions. An oracle sees every
// effect and every commit that reaches the broker, and checks that
//
//   - every record takes effect, once (the oracle's store is an inbox: of several
//     deliveries of a message, the first one is the effect);
//   - effects of one key are in the order of their offsets;
//   - no commit is above a record without an effect;
//   - no commit takes a partition back from another member;
//   - one member never has two handlers of one key at once;
//   - at the end everything is committed.
//
// It runs on an in-process broker and needs nothing else.
package churn
