package payments

import (
	"testing"

	"github.com/paymentsd/paymentsd/internal/printed"
)

func TestDiagramInArchitectureIsCurrent(t *testing.T) {
	printed.Check(t, "../../ARCHITECTURE.md", "states", "```mermaid\n"+Diagram()+"```\n")
}
