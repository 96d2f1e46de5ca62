package api

import (
	"testing"

	"github.com/paymentsd/paymentsd/internal/printed"
)

func TestErrorTableInContractIsCurrent(t *testing.T) {
	printed.Check(t, "../../docs/contract.md", "errors", ErrorTable())
}
