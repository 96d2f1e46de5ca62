// Package idempotency promises that one key in one scope owns at most one operation, and that a second request learns
// exactly what the first one's key allows: the stored answer, a refusal, a wait, or the right to finish the work.
//
// It knows what a key meant (Fingerprint), who may act on it (Lease, with an epoch that fences), what a later request may
// therefore do (Verdict) and what it is answered (Answer). It does not know what a payment is.
//
// The claiming INSERT and the completing UPDATE of a key row stand in the two statements that package payments commits
// them with, because they must be one statement with the rows they belong to; every other statement about keys is here.
package idempotency
