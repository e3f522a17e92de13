// Package middleware is the way of a batch of Kafka records through locks, the
// inbox and the application's handler.
package middleware
