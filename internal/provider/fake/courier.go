package fake

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// message is a webhook on its way.
type message struct {
	id        string
	reference string
	event     string
	order     string
	body      []byte
	wait      time.Duration // before it is sent for the first time
	age       time.Duration // how long ago its signature claims to have been made
	forged    bool          // signed by somebody who does not know the secret
	held      bool          // until another one of its reference was delivered
	delivered func()        // called once for each copy that was
}

const (
	// messagesMax bounds what waits for the receiver: some 10 MB. What is more is left to the journal and to the next start.
	messagesMax = 10_000
	// sendersMax is few enough not to be what the receiver spends its time on.
	sendersMax = 8
	// answerWithin is what receivers are commonly given.
	answerWithin = 5 * time.Second

	// repeatFirst is the first pause; it doubles up to repeatMax: a receiver that restarts is told soon, one that is gone is
	// not pressed.
	repeatFirst = 100 * time.Millisecond
	repeatMax   = 30 * time.Second

	// deliveriesMax bounds what /control/webhooks shows.
	deliveriesMax = 10_000
)

// delivery is one attempt to bring a webhook, as /control/webhooks shows it.
type delivery struct {
	WebhookID string    `json:"webhookId"`
	Event     string    `json:"event"`
	Order     string    `json:"order"`
	Reference string    `json:"reference"`
	Status    int       `json:"status"` // what the receiver answered; 0: nothing
	At        time.Time `json:"at"`
}

// courier brings webhooks to their receiver, each again and again under one id until it is answered with success, or until
// the courier is stopped.
type courier struct {
	url    string
	signer *standardwebhooks.Webhook
	forger *standardwebhooks.Webhook
	client *http.Client
	log    *slog.Logger

	ctx     context.Context // over when the courier is stopped
	cancel  context.CancelFunc
	senders chan struct{}
	work    sync.WaitGroup

	mu         sync.Mutex
	waiting    int
	held       map[string][]message // by reference
	deliveries []delivery           // the last ones, oldest first
}

func newCourier(target, secret string, log *slog.Logger) (*courier, error) {
	if u, err := url.Parse(target); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("the webhook URL must look like http://host:port/path")
	}
	signer, err := standardwebhooks.NewWebhook(secret)
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil || len(key) == 0 {
		return nil, errors.New("the webhook secret must be whsec_ and base64")
	}
	forger, err := standardwebhooks.NewWebhookRaw([]byte("a secret that only a forger has"))
	if err != nil {
		return nil, fmt.Errorf("make forger: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &courier{
		url: target, signer: signer, forger: forger, log: log, ctx: ctx, cancel: cancel,
		client: &http.Client{
			Transport: &http.Transport{MaxIdleConnsPerHost: sendersMax}, Timeout: answerWithin,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		senders: make(chan struct{}, sendersMax), held: map[string][]message{},
	}, nil
}

// send takes a message that is delivered in the background, or reports that it cannot take more.
func (c *courier) send(m message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ctx.Err() != nil:
		return false
	case c.waiting == messagesMax:
		c.log.Warn("too many webhooks wait for their receiver; more are sent after the next start", "webhook", m.id)
		return false
	}
	c.waiting++
	if m.held {
		c.held[m.reference] = append(c.held[m.reference], m)
	} else {
		c.work.Go(func() { c.carry(m) })
	}
	return true
}

// sendNow tries to deliver a message before it returns, and goes on in the background when that fails.
func (c *courier) sendNow(m message) {
	if c.deliver(m) {
		return
	}
	m.wait = repeatFirst
	c.send(m)
}

// carry delivers a message, however often it takes.
func (c *courier) carry(m message) {
	pause := repeatFirst
	for wait := m.wait; c.sleep(wait); {
		select {
		case c.senders <- struct{}{}:
		case <-c.ctx.Done():
			return
		}
		done := c.deliver(m)
		<-c.senders
		if done {
			c.mu.Lock()
			c.waiting--
			c.mu.Unlock()
			return
		}
		wait, pause = pause/2+rand.N(pause), min(2*pause, repeatMax)
	}
}

func (c *courier) sleep(d time.Duration) (slept bool) {
	select {
	case <-time.After(d):
		return true
	case <-c.ctx.Done():
		return false
	}
}

// deliver tries once.
func (c *courier) deliver(m message) bool {
	status, err := c.post(m)
	c.mu.Lock()
	c.deliveries = append(c.deliveries, delivery{m.id, m.event, m.order, m.reference, status, time.Now().UTC()})
	if len(c.deliveries) > deliveriesMax {
		c.deliveries = c.deliveries[1:]
	}
	c.mu.Unlock()
	if status/100 != 2 {
		c.log.Debug("webhook was not taken", "webhook", m.id, "status", status, "error", err)
		return false
	}
	m.delivered()
	c.letGo(m.reference)
	return true
}

// letGo sends what was held back until now.
func (c *courier) letGo(reference string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return
	}
	for _, m := range c.held[reference] {
		c.work.Go(func() { c.carry(m) })
	}
	delete(c.held, reference)
}

// post sends a message, signed now, and gives the status that it was answered with.
func (c *courier) post(m message) (status int, err error) {
	at, signer := time.Now().Add(-m.age), c.signer
	if m.forged {
		signer = c.forger
	}
	signature, err := signer.Sign(m.id, at, m.body)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(c.ctx, http.MethodPost, c.url, bytes.NewReader(m.body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(standardwebhooks.HeaderWebhookID, m.id)
	r.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	r.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	answer, err := c.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, bodyBytesMax)) // read to its end, the connection can be used again
	return answer.StatusCode, nil
}

// of gives the attempts to deliver webhooks of one reference or (empty) of all, oldest first.
func (c *courier) of(reference string) []delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := []delivery{}
	for _, d := range c.deliveries {
		if reference == "" || d.Reference == reference {
			found = append(found, d)
		}
	}
	return found
}

// stop ends every delivery, as a death would.
func (c *courier) stop() {
	c.mu.Lock()
	c.cancel()
	c.mu.Unlock()
	c.work.Wait()
	c.client.CloseIdleConnections()
}
