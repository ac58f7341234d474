package command

import "fmt"

// Rule returns an error of a flag unless ok.
func Rule(flag string, ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(flag+": "+format, args...)
}

// Required returns an error of a flag that has no value.
func Required(flag, value string) error { return Rule(flag, value != "", "is required") }

// Named puts a flag's name before what is wrong with its value.
func Named(flag string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", flag, err)
}
