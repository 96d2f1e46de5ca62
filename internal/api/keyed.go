package api

import (
	"net/http"
	"time"

	"github.com/paymentsd/paymentsd/internal/idempotency"
	"github.com/paymentsd/paymentsd/internal/payments"
)

// keyed serves a keyed operation. The order of its steps is part of the contract: nothing about a key is looked at before
// the caller is known and the command is, and no key is claimed before the body was read whole.
func (s *server) keyed(operation string, parse func(*http.Request, members) (payments.Command, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		command, err := readCommand(r, parse)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		command.Scope.Operation = operation
		s.execute(w, r, command)
	}
}

// readCommand reads everything that a request says.
func readCommand(r *http.Request, parse func(*http.Request, members) (payments.Command, error)) (payments.Command, error) {
	key, err := idempotency.ParseKey(r.Header.Values("Idempotency-Key"))
	if err != nil {
		return payments.Command{}, err
	}
	named, effective, err := versionNamed(r)
	if err != nil {
		return payments.Command{}, err
	}
	body, err := readObject(r)
	if err != nil {
		return payments.Command{}, err
	}
	command, err := parse(r, body)
	command.Scope.TenantID, command.Scope.Key = tenantOf(r.Context()), key
	command.Said.APIVersion, command.SchemaVersion = named, effective
	return command, err
}

// execute runs a keyed command and answers it.
func (s *server) execute(w http.ResponseWriter, r *http.Request, command payments.Command) {
	if r.Context().Err() != nil {
		s.fail(w, r, errBodyTimeout) // hung up, it seems, and nothing was claimed; silence would be a 200 to whoever still reads
		return
	}
	prefer := preferencesOf(r.Header)
	command.Wait, command.Async = prefer.wait, prefer.respondAsync
	result, err := s.payments.Create(r.Context(), command)
	if tellsExpiry(err) {
		w.Header().Set("Idempotency-Key-Expires", result.KeyExpiresAt.UTC().Format(time.RFC3339))
	}
	prefer.applied(w.Header(), result, err)
	switch {
	case err != nil:
		s.fail(w, r, err)
	case result.Pending:
		s.pending(w, r, result, prefer.minimal)
	default:
		s.stored(w, result, prefer.minimal)
	}
}

// tellsExpiry reports whether an answer is about a key of the caller's command, and so says until when it can be replayed.
func tellsExpiry(err error) bool {
	return err == nil || as[*payments.InProgressError](err) || as[*payments.KeyExpiredError](err) || as[*payments.ProviderUnavailableError](err)
}

// stored answers with what the key keeps, to the byte. The mark of a replay is of this exchange and is not stored.
func (s *server) stored(w http.ResponseWriter, result payments.Result, minimal bool) {
	h := w.Header()
	if result.Answer.Location != "" {
		h.Set("Location", result.Answer.Location)
	}
	if result.Replayed {
		h.Set("Idempotent-Replayed", "true")
	}
	if minimal && result.Answer.ErrorCode == "" && result.Answer.Status < http.StatusBadRequest {
		w.WriteHeader(result.Answer.Status)
		return
	}
	h.Set("Content-Type", result.Answer.ContentType)
	w.WriteHeader(result.Answer.Status)
	_, _ = w.Write(result.Answer.Body) // the client is gone; its retry gets the same bytes
}

// pending answers with a payment of which nobody can say yet how it ends.
func (s *server) pending(w http.ResponseWriter, r *http.Request, result payments.Result, minimal bool) {
	body, err := represent(result.Payment, result.SchemaVersion)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Location", locationOf(result.Payment))
	h.Set("Retry-After", retryAfter(result.RetryAfter))
	if minimal {
		w.WriteHeader(answered.unknown.status)
		return
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(answered.unknown.status)
	_, _ = w.Write(body)
}
