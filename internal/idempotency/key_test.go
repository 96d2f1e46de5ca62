package idempotency

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseKey(t *testing.T) {
	longest := strings.Repeat("k", KeyBytesMax)
	for name, c := range map[string]struct {
		values []string
		key    Key
		err    error
	}{
		"no header":                   {nil, "", ErrKeyRequired},
		"empty":                       {[]string{""}, "", ErrKeyRequired},
		"blank":                       {[]string{" \t "}, "", ErrKeyRequired},
		"bare":                        {[]string{"k-1"}, "k-1", nil},
		"bare, outer space":           {[]string{" k-1\t"}, "k-1", nil},
		"quoted":                      {[]string{`"k-1"`}, "k-1", nil},
		"quoted, outer space":         {[]string{` "k-1" `}, "k-1", nil},
		"case is kept":                {[]string{"K-1"}, "K-1", nil},
		"all of visible ASCII":        {[]string{"!#$%&'()*+,-./:;<=>?@[]^_`{|}~\"\\"}, "!#$%&'()*+,-./:;<=>?@[]^_`{|}~\"\\", nil},
		"escaped quote":               {[]string{`"a\"b"`}, `a"b`, nil},
		"escaped backslash":           {[]string{`"a\\b"`}, `a\b`, nil},
		"backslash without quotes":    {[]string{`a\b`}, `a\b`, nil},
		"single character":            {[]string{"k"}, "k", nil},
		"longest":                     {[]string{longest}, Key(longest), nil},
		"longest, quoted":             {[]string{`"` + longest + `"`}, Key(longest), nil},
		"longest, all escaped":        {[]string{`"` + strings.Repeat(`\"`, KeyBytesMax) + `"`}, Key(strings.Repeat(`"`, KeyBytesMax)), nil},
		"parameter of a bare key":     {[]string{"k;p=1"}, "k;p=1", nil},
		"too long":                    {[]string{longest + "k"}, "", ErrKeyInvalid},
		"too long, quoted":            {[]string{`"` + longest + `k"`}, "", ErrKeyInvalid},
		"far too long, quoted":        {[]string{`"` + strings.Repeat("k", 60000) + `"`}, "", ErrKeyInvalid},
		"quoted nothing":              {[]string{`""`}, "", ErrKeyInvalid},
		"quotes not closed":           {[]string{`"k`}, "", ErrKeyInvalid},
		"only a quote":                {[]string{`"`}, "", ErrKeyInvalid},
		"closing quote escaped":       {[]string{`"k\"`}, "", ErrKeyInvalid},
		"unknown escape":              {[]string{`"k\n"`}, "", ErrKeyInvalid},
		"ends in an escape":           {[]string{`"k\`}, "", ErrKeyInvalid},
		"parameter of a string":       {[]string{`"k";p=1`}, "", ErrKeyInvalid},
		"something behind the quotes": {[]string{`"k"k`}, "", ErrKeyInvalid},
		"space inside":                {[]string{"k 1"}, "", ErrKeyInvalid},
		"space inside quotes":         {[]string{`"k 1"`}, "", ErrKeyInvalid},
		"tab inside":                  {[]string{"k\t1"}, "", ErrKeyInvalid},
		"control character":           {[]string{"k\x01"}, "", ErrKeyInvalid},
		"DEL":                         {[]string{"k\x7f"}, "", ErrKeyInvalid},
		"not ASCII":                   {[]string{"k\u00e9"}, "", ErrKeyInvalid},
		"not ASCII, quoted":           {[]string{"\"k\u00e9\""}, "", ErrKeyInvalid},
		"bytes that are no UTF-8":     {[]string{"k\xff"}, "", ErrKeyInvalid},
		"two headers":                 {[]string{"k-1", "k-2"}, "", ErrKeyInvalid},
		"two equal headers":           {[]string{"k-1", "k-1"}, "", ErrKeyInvalid},
		"one blank, one good":         {[]string{"", "k-1"}, "", ErrKeyInvalid},
		"joined by a proxy":           {[]string{"k-1, k-2"}, "", ErrKeyInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			key, err := ParseKey(c.values)
			require.Equal(t, c.key, key)
			require.ErrorIs(t, err, c.err)
		})
	}
}
