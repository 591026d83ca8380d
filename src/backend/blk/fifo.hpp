// A queue of items that link themselves by their member `next`: no memory of its own, and an item is in one at a time.
#pragma once

namespace ringway {

template <typename T>
class Fifo {
 public:
  [[nodiscard]] bool empty() const { return first_ == nullptr; }
  [[nodiscard]] T* front() const { return first_; }
  void push(T& item) {
    item.next = nullptr;
    (last_ == nullptr ? first_ : last_->next) = &item;
    last_ = &item;
  }
  T* pop() {
    T* const item = first_;
    if (item != nullptr) {
      first_ = item->next;
      last_ = first_ == nullptr ? nullptr : last_;
      item->next = nullptr;
    }
    return item;
  }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;
};

}  // namespace ringway
