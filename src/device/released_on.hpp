// Lets the last owner of an object be whoever it is, and the object die on one thread all the same.
//
// Memory tables, dirty logs and in-flight regions are made on the control thread and shared with workers. A worker often
// drops the last reference, and the end of a mapping is munmap() of GiBs: slow, under the lock that every page fault of the
// process needs, with all of the worker's guests waiting. So what goes to workers is a reference made here, whose end is a
// message to the control thread with the real one in it. Nothing on the data path knows of it.
#pragma once

#include <memory>
#include <utility>

#include "loop/executor.hpp"

namespace ringway {

// `home` outlives the result. Once it has ended, messages to it die where they are posted, and so does the object: by then
// the threads that could have been in a hurry have ended as well.
template <typename T>
[[nodiscard]] std::shared_ptr<T> released_on(Executor& home, std::shared_ptr<T> object) {
  if (object == nullptr) {
    return nullptr;
  }
  T* const raw = object.get();
  return std::shared_ptr<T>(raw, [&home, object = std::move(object)](T* /*same*/) mutable noexcept {
    if (home.is_current()) {
      object = nullptr;
    } else {
      home.post([last = std::move(object)]() mutable { last = nullptr; });
    }
  });
}

}  // namespace ringway
