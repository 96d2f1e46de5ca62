package idempotency

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStoredAnswerIsTheAnswer(t *testing.T) {
	for _, a := range []Answer{
		{Status: 201, ContentType: "application/json", Location: "/payments/pay_1", Body: []byte("{\"b\":1.0,\"a\":2}\n")},
		{Status: 402, ContentType: "application/problem+json", Body: []byte{0xff, 0x00}},
	} {
		headers, err := a.Headers()
		require.NoError(t, err)
		again, err := StoredAnswer(a.Status, a.ContentType, headers, a.Body)
		require.NoError(t, err)
		require.Equal(t, a, again)
	}
	_, err := StoredAnswer(201, "application/json", []byte(`[]`), nil)
	require.ErrorContains(t, err, "read stored headers")
}

func TestRefusalIsFinishedButNoSuccess(t *testing.T) {
	require.Equal(t, Completed, Answer{Status: 201}.Finished())
	require.Equal(t, FailedReplayable, Answer{Status: 402, ErrorCode: "DECLINED"}.Finished())
}
