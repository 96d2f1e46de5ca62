package events

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Envelope is an event on its way: CloudEvents 1.0, JSON format, structured mode (github.com/cloudevents/spec). Two
// encodings of one event are the same bytes, however often and by whomever it is sent.
type Envelope struct {
	SpecVersion     string         `json:"specversion"` // "1.0"
	ID              string         `json:"id"`          // the event's id: every repetition has the same
	Source          string         `json:"source"`      // "/tenants/<tenant id>": ids are unique within it
	Type            string         `json:"type"`        // "paymentsd.v1.PaymentSettled"
	Subject         string         `json:"subject"`     // the payment, refund or account
	Time            time.Time      `json:"time"`
	DataContentType string         `json:"datacontenttype"` // "application/json"
	DataSchema      string         `json:"dataschema"`      // the name of the schema of data: "urn:paymentsd:event:v1:payment"
	TenantID        string         `json:"tenantid"`
	PartitionKey    string         `json:"partitionkey"`         // the subject: whoever partitions by it keeps the order of each subject
	Sequence        string         `json:"sequence"`             // 1, 2, 3 … within the subject, as digits (CloudEvents' sequence extension)
	TraceParent     string         `json:"traceparent,omitzero"` // W3C Trace Context of the request that caused the event
	Data            jsontext.Value `json:"data"`
}

const (
	// Version is the version of the language. It grows when a member or a meaning goes away or changes, which has not happened.
	Version = 1
	// BodyBytesMax is some hundred times the largest event of ours.
	BodyBytesMax = 256 << 10

	specVersion   = "1.0"
	jsonType      = "application/json"
	sourcePrefix  = "/tenants/"
	typePrefix    = "paymentsd.v"
	paymentSchema = "urn:paymentsd:event:v1:payment"
	accountSchema = "urn:paymentsd:event:v1:account"
)

// Wrap makes the message that announces a payload: what Payment.Encode or Account.Encode gave, unchanged.
func Wrap(tenantID, traceParent string, payload []byte) ([]byte, error) {
	var head struct {
		EventID    string    `json:"eventId"`
		Type       Type      `json:"type"`
		PaymentID  string    `json:"paymentId"`
		AccountID  string    `json:"accountId"`
		OccurredAt time.Time `json:"occurredAt"`
		Sequence   int       `json:"sequence"`
	}
	if err := json.Unmarshal(payload, &head); err != nil {
		return nil, errors.New("wrap event: the payload is no event of ours")
	}
	subject, schema := head.PaymentID, paymentSchema
	if subject == "" { // decided by what is there, not by the type, which may be newer than this build
		subject, schema = head.AccountID, accountSchema
	}
	if tenantID == "" || head.EventID == "" || head.Type == "" || subject == "" || head.Sequence < 1 {
		return nil, errors.New("wrap event: tenant, eventId, type, subject or sequence is missing")
	}
	message, err := json.Marshal(Envelope{
		SpecVersion: specVersion, ID: head.EventID, Source: sourcePrefix + tenantID, Type: typePrefix + strconv.Itoa(Version) + "." + string(head.Type),
		Subject: subject, Time: head.OccurredAt, DataContentType: jsonType, DataSchema: schema,
		TenantID: tenantID, PartitionKey: subject, Sequence: strconv.Itoa(head.Sequence), TraceParent: traceParent, Data: payload,
	}, json.Deterministic(true), jsontext.PreserveRawStrings(true))
	if err != nil {
		return nil, fmt.Errorf("wrap event %s: %w", head.EventID, err)
	}
	return message, nil
}
