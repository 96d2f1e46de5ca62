package main

import (
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/paymentsd/paymentsd/internal/config"
)

// dropEmptyEnvironment takes a variable that is set to nothing for one that is not set, as compose files pass them.
func dropEmptyEnvironment() {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[config.Settings]()) {
		if name := f.Tag.Get("env"); os.Getenv(name) == "" {
			_ = os.Unsetenv(name) // fails only for names that no tag has
		}
	}
}

// nameVariable makes an error about a flag name the environment variable that the value came from.
func nameVariable(err error) error {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[config.Settings]()) {
		if strings.Contains(err.Error(), "--"+f.Tag.Get("name")+":") || strings.Contains(err.Error(), "--"+f.Tag.Get("name")+"=") ||
			strings.Contains(err.Error(), "--"+f.Tag.Get("name")+" ") {
			return fmt.Errorf("%s: %w", f.Tag.Get("env"), err)
		}
	}
	return err
}
