// Command retryclient shows a client that retries well: one key for one attempt to pay, stored before it is used, and sent
// with every retry until the answer is definite.
//
//	go run ./examples/retryclient -reference invoice-1 -amount 10.00
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"time"
)

func main() {
	url := flag.String("url", "http://127.0.0.1:8080", "where paymentsd is")
	apiKey := flag.String("api-key", "sk_demo_acme", "who pays")
	reference := flag.String("reference", "", "what is paid")
	amount := flag.String("amount", "10.00", "how much, in EUR")
	key := flag.String("key", "", "idempotency key of the attempt; a new one when empty")
	flag.Parse()

	// A real client stores the key with its attempt before it sends it, so that it still has it after a crash of its own. A
	// cart's id would be no good key: the cart can change, and then the key would mean two things.
	attempt := Attempt{Key: cmp.Or(*key, rand.Text()), Body: must(json.Marshal(map[string]string{
		"accountId": "acc_1", "amount": *amount, "currency": "EUR", "merchantReference": *reference}))}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	answer, err := Pay(ctx, *url, *apiKey, attempt)
	if err != nil {
		fmt.Fprintf(os.Stderr, "not known yet; run again with -key %s: %v\n", attempt.Key, err)
		os.Exit(1)
	}
	fmt.Printf("%d %s", answer.Status, answer.Body)
}

// Attempt is one attempt to pay: the same key and the same bytes every time.
type Attempt struct {
	Key  string
	Body []byte
}

// Answer is a definite answer: paid, or refused.
type Answer struct {
	Status int
	Body   []byte
}

// Pay sends the attempt until the answer is definite or ctx is done. An error means that nobody knows yet: the attempt must
// be sent again with the same key, never with a new one.
func Pay(ctx context.Context, url, apiKey string, attempt Attempt) (Answer, error) {
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		answer, again, err := send(ctx, url, apiKey, attempt)
		if err == nil && again == 0 {
			return answer, nil
		}
		select {
		case <-time.After(max(again, pause/2+mathrand.N(pause))): // what the server asks for, or longer and longer
		case <-ctx.Done():
			return Answer{}, fmt.Errorf("gave up waiting: %w (last: %d, %v)", ctx.Err(), answer.Status, err)
		}
	}
}

// send makes one request. again is how long to wait before the next one, 0 when the answer is definite.
func send(ctx context.Context, url, apiKey string, attempt Attempt) (answer Answer, again time.Duration, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/payments", bytes.NewReader(attempt.Body))
	if err != nil {
		return Answer{}, 0, err
	}
	r.Header.Set("Authorization", "Bearer "+apiKey)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", attempt.Key)
	r.Header.Set("Prefer", "wait=10")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return Answer{}, 0, err // the request may have arrived: only the same key is safe now
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return Answer{}, 0, err
	}
	answer = Answer{response.StatusCode, body}
	var problem struct {
		Retryable bool `json:"retryable"`
	}
	_ = json.Unmarshal(body, &problem) // a payment has no such member: false
	if response.StatusCode == http.StatusAccepted || problem.Retryable {
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return answer, max(1, time.Duration(seconds)) * time.Second, nil
	}
	return answer, 0, nil
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}
