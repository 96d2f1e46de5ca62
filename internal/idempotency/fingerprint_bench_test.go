package idempotency

import "testing"

func BenchmarkSum(b *testing.B) {
	for b.Loop() {
		if Sum("v2", "create_payment", Some("accountId", "acc_1"), Some("amount", "10"), Some("currency", "EUR"),
			Some("merchantReference", "invoice-123456"), Some("channel", "web"), No("description")) == "" {
			b.Fatal("no fingerprint")
		}
	}
}

func BenchmarkParseKey(b *testing.B) {
	for name, header := range map[string]string{"bare": "019ae000-5c1e-7000-8000-0123456789ab", "quoted": `"019ae000-5c1e-7000-8000-0123456789ab"`} {
		b.Run(name, func(b *testing.B) {
			values := []string{header}
			for b.Loop() {
				if _, err := ParseKey(values); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
