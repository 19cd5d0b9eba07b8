package operate

import (
	"bufio"
	"fmt"
	"strings"
)

// ask lets a person agree to an act that cannot be undone. Where nobody can be asked it
// refuses: a script says --yes.
func (s *session) ask(yes bool, format string, args ...any) error {
	if yes {
		return nil
	}
	question := fmt.Sprintf(format, args...)
	if _, is := terminal(s.host.In); !is {
		return usage("%s This cannot be undone, and there is no terminal to ask at: pass --yes.", question)
	}
	s.aside("%s This cannot be undone. Go on? [y/N] ", question)
	answer, _ := bufio.NewReader(s.host.In).ReadString('\n') // the end of input is a no
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return failed("not done")
	}
	return nil
}
