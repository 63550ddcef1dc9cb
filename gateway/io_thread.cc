#include "gateway/io_thread.h"

#include <sys/eventfd.h>

namespace kcoral::gateway {

Result<std::shared_ptr<Mailbox>> Mailbox::create() {
  UniqueFd wakeup(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wakeup) return fail_errno("eventfd");
  return std::shared_ptr<Mailbox>(new Mailbox(std::move(wakeup)));
}

void Mailbox::post(Letter letter) {
  {
    const MutexLock lock(mutex_);
    if (closed_) return;
    letters_.push_back(std::move(letter));
    if (letters_.size() > 1) return;  // whoever posted the first has rung
  }
  ::eventfd_write(wakeup_.get(), 1);
}

void Mailbox::close() {
  std::vector<Letter> dropped;  // destroyed outside the lock
  const MutexLock lock(mutex_);
  closed_ = true;
  dropped.swap(letters_);
}

void Mailbox::deliver() {
  std::vector<Letter> letters;
  {
    // The bell is reset before the letters are taken: a letter posted after that rings again.
    eventfd_t rung;
    ::eventfd_read(wakeup_.get(), &rung);
    const MutexLock lock(mutex_);
    letters.swap(letters_);
  }
  for (Letter& letter : letters) letter();
}

}  // namespace kcoral::gateway
