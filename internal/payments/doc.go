// Package payments promises at most one charge for one idempotency key, whatever dies, and whoever asks again.
//
// How to read it: state.go is the table of states; create.go the one transaction in which a payment begins; drive.go the
// one door through which every payment is moved on, by its first request, by a client's retry and by the recovery worker
// alike; move.go the one writer, with its guards; recover.go what happens to payments whose owner died or could not know;
// callbacks.go what the provider says unasked, and how far it is believed.
package payments
